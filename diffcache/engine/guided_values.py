"""Guided values of two guidance passes: a result is made of these, and their errors may be far larger than those of either pass."""

from collections.abc import Callable, Iterator

from torch import Size, Tensor

from diffcache.engine.comparison import Streams
from diffcache.engine.execution import Invocation
from diffcache.host.conventions import UNCONDITIONAL
from diffcache.host.rows import BatchedGuidance, conditional_first
from diffcache.schedulers.guidance import Guidance
from diffcache.schedulers.steps import Step


class GuidedValues:
    """Combines what one run's two passes give, as the pipeline does (see `Guidance`).

    They come in one batch, or one after another. A run of one pass, or of more than two, has no guided values: there each pass stands
    for itself. So does the first of two whose outputs have other shapes, as where reference pictures are in one of them only. A batch of both
    may be followed by a third pass, as skip-layer guidance has it, which is left out.

    Args:
        told: gives what is known of the run's guidance so far.
    """

    def __init__(self, told: Callable[[], Guidance]) -> None:
        self._told = told
        self._batched = BatchedGuidance()
        self._tick = -1
        # How many rows the calls of this tick have, and those of the tick before.
        self._rows: list[int] = []
        self._before: list[int] = []
        self._first: tuple[str, list[Streams]] | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether a first pass has given its values and waits for the second one."""
        return self._first is not None

    def called(self, tick: int, rows: int) -> None:
        """A call of so many rows begins. The same passes are expected in a tick as there were in the last one."""
        if tick != self._tick:
            self._tick, self._before, self._rows, self._first = tick, self._rows, [], None
        self._rows.append(rows)

    def guided(
        self, asked: Invocation, step: Step, values: list[Streams], *, leads: bool
    ) -> list[Streams] | None:
        """Guided values; None until the second pass has given its own, and where that has another number of rows than before.

        Args:
            asked: the call.
            step: its tick and pass.
            values: what it gave, several lists of streams, [batch, ...].
            leads: it is the first pass.
        """
        guidance = self._told()
        if guidance.counted <= 1:
            return values
        if not leads:
            return self._with_first(guidance, values)
        if len(self._before) == 2 and len({*self._before}) == 1:
            self._first = step.branch, values
            return None
        module = asked.module
        if len(self._before) > 2 or not self._batched.found_in(module, asked.call, step.tick, asked.context):
            return values
        halves = [[tensor.chunk(2) for tensor in streams] for streams in values]
        in_order = conditional_first(module)
        return [[guidance.of(*(pair if in_order else pair[::-1])) for pair in streams] for streams in halves]

    def tensors(self) -> Iterator[Tensor]:
        """What the first pass gave."""
        for streams in self._first[1] if self._first is not None else ():
            yield from streams

    def clear(self) -> None:
        """Drops every tensor."""
        self._first = None

    def _with_first(self, guidance: Guidance, values: list[Streams]) -> list[Streams] | None:
        assert self._first is not None
        (name, first), self._first = self._first, None
        if len({*self._rows}) > 1:
            return None
        if _shapes(first) != _shapes(values):
            return first
        conditional, unconditional = (values, first) if name == UNCONDITIONAL else (first, values)
        return [[*map(guidance.of, *pair)] for pair in zip(conditional, unconditional, strict=True)]


def _shapes(values: list[Streams]) -> list[list[Size]]:
    return [[tensor.shape for tensor in streams] for streams in values]
