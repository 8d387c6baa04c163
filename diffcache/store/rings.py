"""The store: past features of a site for one branch, one ring for each lane."""

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any

from torch import Tensor

from diffcache.host.call import Call
from diffcache.noise_schedulers.timetable import Timetable
from diffcache.prediction.correctors import Corrector
from diffcache.prediction.hindsight import DEGREE, ReusedTick, hindsight_weights
from diffcache.prediction.predictors import Predictor
from diffcache.schedulers.moments import Moment
from diffcache.schedulers.steps import Decision, Step
from diffcache.store.formats import (
    Format,
    Pair,
    Ring,
    bytes_in_ring,
    forget_on_error,
    plain,
    values_of,
)
from diffcache.store.streams import Layout

Tensors = dict[str, Tensor]

_tick = attrgetter("tick")


class Setup:
    """What all stores of a denoiser share in one run.

    Args:
        predictor: how a reused tick is predicted.
        format: how features lie in memory.
        times: the run's noise levels.
        corrector: how predictions are repaired; None for not at all.
        hindsight: reused ticks are corrected when the next one is computed.

    Attributes:
        serving: by decision, the predictor that serves it.
        depth: how many features a ring holds.
    """

    def __init__(
        self,
        predictor: Predictor,
        format: Format,
        times: Timetable,
        corrector: Corrector | None = None,
        *,
        hindsight: bool = False,
    ) -> None:
        self.predictor = predictor
        self.serving = {decision: predictor.serving(decision) for decision in Decision}
        self.format = format
        self.times = times
        self.corrector = corrector
        self.hindsight = hindsight
        self.depth = max(predictor.depth, DEGREE) if hindsight else predictor.depth
        self._last: tuple[tuple[Any, ...], list[float]] = ((), [])

    def weights(self, decision: Decision, ring: Ring, step: Step) -> list[float]:
        """One weight for each of the ring's newest features, as many as the decision's predictor looks at.

        Sites that were computed at the same ticks have the same weights, so the last ones are remembered.
        """
        key = (decision, step.tick, *map(_tick, ring))
        if key != self._last[0]:
            predictor, known, at = self.serving[decision], self.times.moments, step.tick
            past = self.moments(ring)[: predictor.depth]
            now = known[at] if at < len(known) else self.times.moment(at)
            self._last = key, predictor.weights(past, now)
        return self._last[1]

    def moments(self, ring: Ring) -> list[Moment]:
        """When the features of a ring were computed, newest first."""
        known, times = self.times.moments, self.times
        return [known[f.tick] if f.tick < len(known) else times.moment(f.tick) for f in ring]


class Store:
    """Rings of the newest features of one site, newest first.

    Args:
        setup: what it shares with the run's other stores.

    Attributes:
        layout: how the output splits, learned from a computed call that looked like the newest; None before the first.
        rings: one for each lane.
        reused: for each lane the ticks that were reused since its newest feature, where hindsight is to correct them.
        nbytes: of what is stored.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.layout: Layout | None = None
        self.rings: list[Ring] = []
        self.reused: list[list[ReusedTick]] = []
        self.nbytes = 0

    def empty(self, lanes: int) -> None:
        """Drops what is stored, and makes room for so many lanes."""
        for ring in self.rings:
            ring.clear()
        self.rings = [deque(maxlen=self.setup.depth) for _ in range(lanes)]
        self.reused = [[] for _ in range(lanes)]
        self.nbytes = 0

    def clear(self) -> None:
        """Drops everything."""
        self.empty(0)
        self.layout = None

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
            self.empty(len(self.rings))
            self.layout = Layout(call, output, residual=residual, continues=continues)
        return self.layout

    def push(self, tick: int, lane: int, pairs: Sequence[Pair]) -> None:
        """Keeps what a computed call gave, as its layout pairs it with the call's arguments (`Layout.based`)."""
        ring = self.rings[lane]
        before = len(ring)
        self.setup.format.push(ring, tick, pairs)
        if len(ring) != before:  # a feature that replaces another of the same layout takes as many bytes
            self.nbytes = sum(map(bytes_in_ring, self.rings))

    def keep(self, step: Step, lane: int, tensors: Tensors, outputs: list[Tensor]) -> list[Tensor]:
        """Keeps computed `outputs`; returns them, with what corrects the lane's reused ticks added (`hindsight`)."""
        reused, self.reused[lane] = self.reused[lane], []
        corrected = self._corrected(step, lane, tensors, outputs, reused) if reused else outputs
        self.push(step.tick, lane, self.learned.based(tensors, outputs))
        return corrected

    def value(
        self, decision: Decision, step: Step, lane: int, tensors: Tensors, *, corrected: bool = True
    ) -> list[Tensor]:
        """The outputs that a decision predicts at `step` for a call with these `tensors`.

        Args:
            corrected: apply the corrector.
        """
        setup, ring, layout = self.setup, self.rings[lane], self.layout
        assert layout is not None
        weights = setup.weights(decision, ring, step)
        if setup.format.as_is:
            past = [feature.tensors for feature in islice(ring, len(weights))]
        else:
            past, weights = setup.format.read(ring, weights)
        corrections = None
        if corrected and setup.corrector is not None:
            corrections = [
                setup.corrector.correction(step, stream, values_of(kept))
                for stream, kept in enumerate(past[0])
            ]
        try:
            return layout.predict(tensors, past, weights, corrections)
        except BaseException as error:
            forget_on_error(past, error)
            raise

    def moments(self, lane: int) -> list[Moment]:
        """When the features of a lane were computed, newest first."""
        return self.setup.moments(self.rings[lane])

    def newest(self, lane: int) -> tuple[Tensor, ...]:
        """The feature that was stored last, one floating tensor for each of the output's."""
        features, weights = self.setup.format.read(self.rings[lane], [1.0])
        return tuple(plain(past, weights) for past in zip(*features, strict=True))

    @property
    def learned(self) -> Layout:
        """The layout, of a store that has been filled."""
        assert self.layout is not None
        return self.layout

    def _corrected(
        self, step: Step, lane: int, tensors: Tensors, outputs: list[Tensor], reused: list[ReusedTick]
    ) -> list[Tensor]:
        setup = self.setup
        own, *others = hindsight_weights(
            reused, step.moment, self.moments(lane), setup.times.ratio, setup.predictor.axis
        )
        past, weights = setup.format.read(self.rings[lane], others)
        try:
            return self.learned.corrected(tensors, outputs, own, past, weights)
        except BaseException as error:
            forget_on_error(past, error)
            raise
