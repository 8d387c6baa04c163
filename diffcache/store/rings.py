"""The store of a site in one branch: the past features of each lane, in a ring."""

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
    values_of,
    weighted_sum,
)
from diffcache.store.streams import Layout

Tensors = dict[str, Tensor]

_tick = attrgetter("tick")


class Setup:
    """What all stores of a denoiser share in one run.

    Args:
        predictor: predicts reused ticks.
        format: stores features.
        times: the run's timetable.
        corrector: repairs predictions; None: they are not repaired.
        hindsight: reused ticks are corrected when the next one is computed.

    Attributes:
        serving: for each decision, the predictor that carries it out.
        depth: the number of features that a ring can hold.
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
        """A weight for each of the ring's newest features, as many as the decision's predictor uses.

        Sites that were computed at the same ticks have the same weights, so the last weights are remembered.
        """
        key = (decision, step.tick, *map(_tick, ring))
        if key != self._last[0]:
            predictor, known, tick = self.serving[decision], self.times.moments, step.tick
            past = self.moments(ring)[: predictor.depth]
            now = known[tick] if tick < len(known) else self.times.moment(tick)
            self._last = key, predictor.weights(past, now)
        return self._last[1]

    def moments(self, ring: Ring) -> list[Moment]:
        """The moments of a ring's features, newest first."""
        known, times = self.times.moments, self.times
        return [known[f.tick] if f.tick < len(known) else times.moment(f.tick) for f in ring]


class Store:
    """The newest features of one site in one branch.

    Args:
        setup: what it shares with the run's other stores.

    Attributes:
        layout: how the site's output splits into streams, learned from a computed call; None before the first.
        rings: the features of each lane.
        reused: for each lane the ticks reused since its newest feature, if hindsight is to correct them.
        nbytes: bytes of all features.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.layout: Layout | None = None
        self.rings: list[Ring] = []
        self.reused: list[list[ReusedTick]] = []
        self.nbytes = 0

    def empty(self, lanes: int) -> None:
        """Drops all features, and makes an empty ring for each of so many lanes."""
        for ring in self.rings:
            ring.clear()
        self.rings = [deque(maxlen=self.setup.depth) for _ in range(lanes)]
        self.reused = [[] for _ in range(lanes)]
        self.nbytes = 0

    def clear(self) -> None:
        """Drops all features and the layout."""
        self.empty(0)
        self.layout = None

    def __len__(self) -> int:
        return sum(len(ring) for ring in self.rings)

    def last_computed(self, lane: int) -> int | None:
        """Tick of a lane's newest feature; None if it has none."""
        return self.rings[lane][0].tick if self.rings[lane] else None

    def learn(
        self, call: Call, output: Any, *, residual: bool, continues: Mapping[int, str] | None = None
    ) -> Layout:
        """The layout of a computed call, learned anew if it looks different from the calls before.

        Their features are dropped then. For the arguments see `Layout`.
        """
        if self.layout is None or not self.layout.fits(call, output):
            self.empty(len(self.rings))
            self.layout = Layout(call, output, residual=residual, continues=continues)
        return self.layout

    def push(self, tick: int, lane: int, pairs: Sequence[Pair]) -> None:
        """Stores what a computed call returned, paired with the call's arguments (`Layout.pairs`)."""
        ring = self.rings[lane]
        before = len(ring)
        self.setup.format.push(ring, tick, pairs)
        if len(ring) != before:  # a feature that replaces another of the same layout takes as many bytes
            self.nbytes = sum(map(bytes_in_ring, self.rings))

    def keep(self, step: Step, lane: int, tensors: Tensors, outputs: list[Tensor]) -> list[Tensor]:
        """Stores computed outputs, and returns them; with hindsight they correct the lane's reused ticks."""
        reused, self.reused[lane] = self.reused[lane], []
        corrected = self._corrected(step, lane, tensors, outputs, reused) if reused else outputs
        self.push(step.tick, lane, self.learned.pairs(tensors, outputs))
        return corrected

    def value(
        self, decision: Decision, step: Step, lane: int, tensors: Tensors, *, corrected: bool = True
    ) -> list[Tensor]:
        """Predicts the outputs of a call.

        Args:
            decision: a decision to reuse.
            step: tick and site.
            lane: index of the lane.
            tensors: the lane's part of the call's arguments.
            corrected: repair the prediction with the corrector.
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
        """The moments of a lane's features, newest first."""
        return self.setup.moments(self.rings[lane])

    def newest(self, lane: int) -> tuple[Tensor, ...]:
        """A lane's newest feature: one tensor for each stream, as it is read from the format."""
        features, weights = self.setup.format.read(self.rings[lane], [1.0])
        return tuple(weighted_sum(past, weights) for past in zip(*features, strict=True))

    @property
    def learned(self) -> Layout:
        """The layout of a store that has one."""
        assert self.layout is not None
        return self.layout

    def _corrected(
        self, step: Step, lane: int, tensors: Tensors, outputs: list[Tensor], reused: list[ReusedTick]
    ) -> list[Tensor]:
        """Computed outputs that correct the `reused` ticks before them (see `hindsight`)."""
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
