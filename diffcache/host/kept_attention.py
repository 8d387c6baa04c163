"""Notices that a denoiser's attention processors keep what they compute, as self-attention guidance has them do. A pipeline may read it."""

from typing import Any

from torch import Tensor, nn

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


DEPTH = 3
"""How deep it is looked into what a processor holds: a controller, its dict, a list in that."""


def _state(value: Any, depth: int = DEPTH) -> Any:
    """Of an attribute: it is another one when a tensor has been replaced or written to, or a list has grown.

    That goes for what an object holds, too: prompt-to-prompt has one controller for all processors. Networks hold weights, and pipelines hold
    tensors of their own.
    """
    if isinstance(value, Tensor):
        return id(value), version_of(value)
    if isinstance(value, (list, tuple)):
        return len(value)
    if isinstance(value, dict):
        return {name: _state(held, depth - 1) for name, held in value.items()} if depth else len(value)
    is_other = isinstance(value, (nn.Module, type)) or hasattr(value, "components")
    held = None if is_other else getattr(value, "__dict__", None)
    return _state(held, depth - 1) if held and depth else None
