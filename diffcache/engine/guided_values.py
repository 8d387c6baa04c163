"""Guided values of two guidance passes: a result is made of these, and their errors may be far larger than those of either pass."""

from collections.abc import Iterator

from torch import Tensor

from diffcache.config import counted_guidance
from diffcache.engine.comparison import Streams
from diffcache.engine.execution import Invocation
from diffcache.host.conventions import UNCONDITIONAL
from diffcache.host.rows import BatchedGuidance, conditional_first
from diffcache.schedulers.steps import Step


class GuidedValues:
    """Combines what one run's two passes give: u + scale * (c - u), classifier-free guidance (arXiv 2207.12598, equation 6).

    They come in one batch, or one after another. A run of one pass, or of more than two, has no guided values: there each pass stands
    for itself.

    Args:
        scale: of guidance; 1: none; None: nothing tells.
    """

    def __init__(self, scale: float | None) -> None:
        self._scale = counted_guidance(scale)
        self._batched = BatchedGuidance()
        self._tick, self._calls, self._passes = -1, 1, 1
        self._first: tuple[str, list[Streams]] | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether a first pass has given its values and waits for the second one."""
        return self._first is not None

    def called(self, tick: int) -> None:
        """A call begins. As many passes are expected in a tick as there were in the last one."""
        if tick != self._tick:
            self._tick, self._passes, self._calls, self._first = tick, self._calls, 0, None
        self._calls += 1

    def guided(
        self, asked: Invocation, step: Step, values: list[Streams], *, leads: bool
    ) -> list[Streams] | None:
        """Guided values; None until the second pass has given its own.

        Args:
            asked: the call.
            step: its tick and pass.
            values: what it gave, several lists of streams, [batch, ...].
            leads: it is the first pass.
        """
        if self._scale <= 1:
            return values
        if not leads:
            return self._with_first(values)
        if self._passes == 2:
            self._first = step.branch, values
            return None
        module = asked.module
        if self._passes > 2 or not self._batched.found_in(module, asked.call, step.tick, asked.context):
            return values
        halves = [[tensor.chunk(2) for tensor in streams] for streams in values]
        in_order = conditional_first(module)
        return [[self._mixed(*(pair if in_order else pair[::-1])) for pair in streams] for streams in halves]

    def tensors(self) -> Iterator[Tensor]:
        """What the first pass gave."""
        for streams in self._first[1] if self._first is not None else ():
            yield from streams

    def clear(self) -> None:
        """Drops every tensor."""
        self._first = None

    def _with_first(self, values: list[Streams]) -> list[Streams]:
        assert self._first is not None
        (name, first), self._first = self._first, None
        conditional, unconditional = (values, first) if name == UNCONDITIONAL else (first, values)
        return [[*map(self._mixed, *pair)] for pair in zip(conditional, unconditional, strict=True)]

    def _mixed(self, conditional: Tensor, unconditional: Tensor) -> Tensor:
        return unconditional + self._scale * (conditional - unconditional)
