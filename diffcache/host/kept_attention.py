"""Notices that a denoiser's attention processors keep what they compute, as self-attention guidance has them do. A pipeline may read it."""

from typing import Any

from torch import Tensor

from diffcache.host.call import version_of
from diffcache.host.network_facts import NetworkFacts


class KeptAttention:
    """What the attention processors of one denoiser hold, compared from call to call of one run."""

    def __init__(self) -> None:
        self._held: list[Any] | None = None
        self._has_changed = False

    def changes(self, facts: NetworkFacts) -> bool:
        """Whether what they hold has ever changed between two calls: then a skipped call would leave an old one's in its place."""
        if not self._has_changed:
            held = [*map(_state, facts.held_by_processors())]
            self._has_changed = self._held is not None and held != self._held
            self._held = held
        return self._has_changed


def _state(value: Any) -> Any:
    """Of an attribute: it is another one when a tensor has been replaced or written to, or a list has grown."""
    if isinstance(value, Tensor):
        return id(value), version_of(value)
    return len(value) if isinstance(value, (list, dict)) else None
