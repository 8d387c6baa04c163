"""Compares, at computed ticks, what would have been reused with what was computed."""

from collections.abc import Sequence

import torch
from torch import Tensor

from diffcache.engine.decider import Lane
from diffcache.engine.prediction_watch import COMPARED, errors_of
from diffcache.reports.records import RunRecord
from diffcache.schedulers.steps import Decision, Step
from diffcache.store.rings import Store, Tensors

Streams = list[Tensor]


class Comparison:
    """Measures the errors of one run. They stay on the device until the run is over.

    Attributes:
        errors: at a computed tick, the last computed tick before it, kinds of reuse, and the error of each, fp32 [kinds].
    """

    def __init__(self) -> None:
        self.errors: list[tuple[int, int, tuple[Decision, ...], Tensor]] = []

    def compare(
        self, lane: Lane, index: int, step: Step, store: Store, tensors: Tensors, computed: Streams
    ) -> list[Streams] | None:
        """Notes how far a lane of the leading branch would have been from what it computed at `step`, had it been reused.

        Args:
            lane, index: the lane, and which of the store's it is.
            tensors: the call's.
            computed: the outputs that evolve latents; their velocities, where these are stored.

        Returns:
            What would have been reused, where the cache scheduler asks for it.
        """
        last, asked = store.last_computed(index), lane.scheduler.compares
        longer = last is not None and step.tick - last > 1  # a step of one tick says little about longer ones
        if last is None or not (longer or asked):
            return None
        kinds = asked or COMPARED
        if lane.prediction_watch is not None:
            kinds = tuple(dict.fromkeys((*COMPARED, *asked)))
        guesses = self.guesses(kinds, index, step, store, tensors)
        if longer:
            errors = errors_of(guesses, computed)
            self.errors.append((step.tick, last, kinds, errors))
            if lane.prediction_watch is not None and len(store.rings[index]) > 1:
                lane.prediction_watch.note(errors[: len(COMPARED)])
        return [guesses[kinds.index(kind)] for kind in asked] if asked else None

    def guesses(
        self, kinds: Sequence[Decision], index: int, step: Step, store: Store, tensors: Tensors
    ) -> list[Streams]:
        """What each kind of reuse would have given at a computed step."""
        return [store.learned.evolved(store.guess(kind, step, index, tensors)) for kind in kinds]

    def close(self, record: RunRecord) -> None:
        """Reads the errors from the device, all at once, and writes them down."""
        if self.errors:
            values = torch.stack([errors for *_, errors in self.errors]).tolist()
            record.errors += [
                (tick, last, {kind.value: error for kind, error in zip(kinds, row, strict=True)})
                for (tick, last, kinds, _), row in zip(self.errors, values, strict=True)
            ]
        self.errors = []


def squares_of(guesses: Sequence[Streams], computed: Streams, sample: Tensor) -> Tensor:
    """Mean squares of what was computed and of the error of each guess, and the variance of the sample: see `CacheScheduler.compared`.

    Args:
        guesses: lists of streams, [batch, ...].
        computed: likewise.
        sample: that the denoiser was given, [batch, ...].
    """
    errors = [[guess - value for guess, value in zip(streams, computed, strict=True)] for streams in guesses]
    variance = sample.float().reshape(len(sample), -1).var(dim=1, correction=0).mean()
    return torch.stack([*(_mean_square(streams) for streams in (computed, *errors)), variance])


def _mean_square(streams: Streams) -> Tensor:
    return torch.stack([stream.float().square().mean() for stream in streams]).mean()
