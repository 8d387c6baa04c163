"""The store: past features of a site for one branch, one ring for each lane."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from diffcache.host.call import Call
from diffcache.kernels.extrapolate import NO_CORRECTION
from diffcache.noise_schedulers.timetable import Timetable
from diffcache.prediction.correctors import Corrector
from diffcache.prediction.hindsight import Owed, amends
from diffcache.prediction.predictors import Predictor
from diffcache.schedulers.moments import Axis, Moment
from diffcache.schedulers.steps import Step
from diffcache.store.formats import Format, Pair, Ring, bytes_in_ring, dropped_on_error, plain, values_of
from diffcache.store.streams import Layout

Tensors = dict[str, Tensor]


class Store:
    """Rings of the newest `depth` features, newest first.

    Args:
        depth: how many.
        format: how they lie in memory.

    Attributes:
        layout: how the output splits, learned from a computed call that looked like the newest; None before the first.
        rings: one for each lane.
        owed: for each lane the ticks that were reused since its newest feature, if hindsight is to make them good.
        nbytes: of what is stored.
    """

    def __init__(self, depth: int, format: Format) -> None:
        self.depth = depth
        self.format = format
        self.layout: Layout | None = None
        self.rings: list[Ring] = []
        self.owed: list[list[Owed]] = []
        self.nbytes = 0

    def seat(self, lanes: int) -> None:
        """Empties the store, and makes room for so many lanes."""
        for ring in self.rings:
            ring.clear()
        self.rings = [deque(maxlen=self.depth) for _ in range(lanes)]
        self.owed = [[] for _ in range(lanes)]
        self.nbytes = 0

    def __len__(self) -> int:
        return sum(len(ring) for ring in self.rings)

    def last_computed(self, lane: int) -> int | None:
        """Tick of the newest feature of a lane."""
        return self.rings[lane][0].tick if self.rings[lane] else None

    def learn(
        self, call: Call, output: Any, *, residual: bool, continues: Mapping[int, str] | None = None
    ) -> Layout:
        """The layout of a computed call. If it looks otherwise than those before, what they left is dropped."""
        if self.layout is None or not self.layout.fits(call, output):
            self.seat(len(self.rings))
            self.layout = Layout(call, output, residual=residual, continues=continues)
        return self.layout

    def push(self, tick: int, lane: int, pairs: Sequence[Pair]) -> None:
        """Keeps what a computed call gave, as its layout pairs it with the call's arguments (`Layout.based`)."""
        ring = self.rings[lane]
        before = len(ring)
        self.format.push(ring, tick, pairs)
        if len(ring) != before:  # one for another of the same layout takes as many
            self.nbytes = sum(map(bytes_in_ring, self.rings))

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
        moments = self.moments(lane, times)[: predictor.depth]
        weights = predictor.weights(moments, step.moment)
        past, weights = self.format.read(self.rings[lane], weights)
        corrections = [
            NO_CORRECTION if corrector is None else corrector.correction(step, stream, values_of(kept))
            for stream, kept in enumerate(past[0])
        ]
        with dropped_on_error(past):
            return self.learned.predict(tensors, past, weights, corrections)

    def amended(
        self, step: Step, times: Timetable, lane: int, tensors: Tensors, outputs: list[Tensor], axis: Axis
    ) -> list[Tensor]:
        """Computed `outputs` with what makes the lane's reused ticks good; before they are pushed."""
        owed, self.owed[lane] = self.owed[lane], []
        if not owed:
            return outputs
        own, *others = amends(owed, step.moment, self.moments(lane, times), times.ratio, axis)
        past, weights = self.format.read(self.rings[lane], others)
        with dropped_on_error(past):
            return self.learned.amended(tensors, outputs, own, past, weights)

    def moments(self, lane: int, times: Timetable) -> list[Moment]:
        """When the features of a lane were computed, newest first."""
        return [Moment(feature.tick, times.sigma(feature.tick)) for feature in self.rings[lane]]

    def newest(self, lane: int) -> tuple[Tensor, ...]:
        """The feature that was stored last, one floating tensor for each of the output's."""
        features, weights = self.format.read(self.rings[lane], [1.0])
        return tuple(plain(past, weights) for past in zip(*features, strict=True))

    @property
    def learned(self) -> Layout:
        """The layout, of a store that has been filled."""
        assert self.layout is not None
        return self.layout

    def clear(self) -> None:
        for ring in self.rings:
            ring.clear()
        self.rings, self.owed, self.layout, self.nbytes = [], [], None, 0
