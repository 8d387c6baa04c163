"""What is known of an object, kept beside it: it goes when the object goes, and is no part of its copies and pickles."""

from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")


class KeptWith(Generic[T]):
    """The newest few values of each object, by key. Keys are compared, not hashed.

    Args:
        most: so many values are kept of an object. The one that was used longest ago is dropped first.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: WeakKeyDictionary[Any, list[tuple[Any, T]]] = WeakKeyDictionary()

    def get(self, owner: object, key: object) -> T | None:
        """The value of this key; None where there is none."""
        kept = self._kept.get(owner, [])
        for i, (known, value) in enumerate(kept):
            if known == key:
                self._kept[owner] = [kept[i], *kept[:i], *kept[i + 1 :]]
                return value
        return None

    def put(self, owner: object, key: object, value: T) -> None:
        """Keeps a value, in the place of the one that had its key. Neither may refer to the owner, or it would never go."""
        kept = [one for one in self._kept.get(owner, []) if one[0] != key]
        self._kept[owner] = [(key, value), *kept[: self._most - 1]]

    def drop(self, owner: object, key: object) -> None:
        """Forgets the value of this key."""
        self._kept[owner] = [one for one in self._kept.get(owner, []) if one[0] != key]
