"""Which objects are accelerated, and which of them are paused: pipelines, denoisers and language models alike.

A module that `torch.compile` wraps is known here by the module inside: callers pass that one.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from diffcache.hooks.class_swap import swap_out
from diffcache.schedulers.errors import TargetError


@dataclass(eq=False)
class Attachment(ABC):
    """What `accelerate` attached to one target.

    Attributes:
        config: the method.
        swapped: objects whose class was swapped for this target.
    """

    config: Any
    swapped: "WeakSet[Any]" = field(default_factory=WeakSet)

    @abstractmethod
    def report(self) -> Any:
        """The report of the target's last call; an empty one before the first."""


_attachments: "WeakKeyDictionary[Any, Attachment]" = WeakKeyDictionary()
"""By target."""

PAUSED: ContextVar[frozenset[int]] = ContextVar("diffcache_paused", default=frozenset())
"""Ids of the paused targets, in this thread."""


def own_attachment(target: object) -> Attachment | None:
    """That of the target itself."""
    return _attachments.get(target) if _can_be_key(target) else None


def attachment_of(target: object) -> Attachment | None:
    """That of the target itself, or of the one pipeline through which it is accelerated."""
    users = users_of(target)
    return own_attachment(target) or (users[0] if len(users) == 1 else None)


def users_of(thing: object) -> list[Attachment]:
    """The attachments for which an object's class was swapped."""
    if not _can_be_key(thing):
        return []
    return [attachment for attachment in list(_attachments.values()) if thing in attachment.swapped]


def register(target: object, attachment: Attachment) -> None:
    """Makes this the target's attachment. What only the one before it needed gets its own class back."""
    before = own_attachment(target)
    _attachments[target] = attachment
    if before is not None:
        release(before.swapped)


def forget(target: object) -> None:
    """Removes the target's attachment, if it has one. What only that one needed gets its own class back."""
    attachment = own_attachment(target)
    if attachment is not None:
        del _attachments[target]
        release(attachment.swapped)


def release(things: Iterable[object]) -> None:
    """Gives these objects their own class back, unless an attachment needs the swapped one."""
    for thing in list(things):
        if not users_of(thing):
            swap_out(thing)


@contextmanager
def paused(target: object) -> Iterator[None]:
    """Inside, calls of `target` compute everything and leave its report as it is; in this thread only.

    Raises:
        TargetError: it is not accelerated.
    """
    if attachment_of(target) is None:
        raise TargetError(f"this {type(target).__name__} is not accelerated: there is nothing to pause.")
    token = PAUSED.set(PAUSED.get() | {id(target)})
    try:
        yield
    finally:
        PAUSED.reset(token)


def is_paused(*targets: object) -> bool:
    """Whether any of these is paused in this thread."""
    return bool(PAUSED.get() & set(map(id, targets)))


def _can_be_key(target: object) -> bool:
    """Whether a target can be remembered without being kept alive."""
    try:
        hash(target)
    except TypeError:
        return False
    return type(target).__weakrefoffset__ != 0
