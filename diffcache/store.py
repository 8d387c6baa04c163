"""The store: past features of a site for one branch, one ring for each lane."""

import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from diffcache.correctors import Corrector
from diffcache.kernels.extrapolate import NO_CORRECTION
from diffcache.layout import Layout
from diffcache.predictors import Moment, Predictor
from diffcache.schedulers.steps import Step
from diffcache.timetable import Timetable

Tensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Feature:
    """What one computed call left behind: one detached tensor for each tensor of the module's output."""

    tick: int
    tensors: tuple[Tensor, ...]


class Store:
    """Rings of the newest `depth` features, newest first.

    Attributes:
        layout: how the output splits, learned from the newest computed call; None before the first.
        rings: one for each lane.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.layout: Layout | None = None
        self.rings: list[deque[Feature]] = []

    def seat(self, lanes: int) -> None:
        """Makes room for so many lanes; another number than before empties the store."""
        if len(self.rings) != lanes:
            self.rings = [deque(maxlen=self.depth) for _ in range(lanes)]

    def __len__(self) -> int:
        return sum(len(ring) for ring in self.rings)

    def last_computed(self, lane: int) -> int | None:
        """Tick of the newest feature of a lane."""
        return self.rings[lane][0].tick if self.rings[lane] else None

    def push(self, tick: int, lane: int, tensors: Tensors, outputs: Sequence[Tensor]) -> None:
        """Keeps what a computed call gave: `outputs`, from the call's `tensors`."""
        ring = self.rings[lane]
        if len(ring) == self.depth:
            ring.pop()  # before the new one is made: its memory can be used again
        ring.appendleft(Feature(tick, self.learned.features(tensors, outputs)))

    def value(
        self,
        predictor: Predictor,
        step: Step,
        times: Timetable,
        lane: int,
        tensors: Tensors,
        corrector: Corrector | None = None,
    ) -> list[Tensor]:
        """The outputs that `predictor` expects at `step` for a call with these `tensors`, repaired by `corrector`."""
        past = list(self.rings[lane])[: predictor.depth]
        moments = [Moment(feature.tick, times.sigma(feature.tick)) for feature in past]
        weights = predictor.weights(moments, Moment(step.tick, step.sigma))
        corrections = [
            NO_CORRECTION if corrector is None else corrector.correction(step, stream, feature)
            for stream, feature in enumerate(past[0].tensors)
        ]
        try:
            return self.learned.predict(tensors, [feature.tensors for feature in past], weights, corrections)
        except BaseException as error:
            past.clear()
            traceback.clear_frames(
                error.__traceback__
            )  # a traceback that somebody keeps would keep the features
            raise

    def newest(self, lane: int) -> tuple[Tensor, ...]:
        """The feature that was stored last."""
        return self.rings[lane][0].tensors

    @property
    def learned(self) -> Layout:
        """The layout, of a store that has been filled."""
        assert self.layout is not None
        return self.layout

    def clear(self) -> None:
        for ring in self.rings:
            ring.clear()
        self.rings, self.layout = [], None

    def tensors(self) -> Iterator[Tensor]:
        for ring in self.rings:
            for feature in ring:
                yield from feature.tensors
