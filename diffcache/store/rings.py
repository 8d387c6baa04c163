"""The store of a site in one branch: the past features of each lane, in a ring."""

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from diffcache.host.call import Call
from diffcache.kernels.extrapolate import Correction
from diffcache.noise_schedulers.levels import VELOCITY, Parametrisation
from diffcache.noise_schedulers.timetable import Timetable
from diffcache.prediction.correctors import Corrector
from diffcache.prediction.hindsight import ReusedTick, hindsight_weights
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
from diffcache.store.placement import Kept
from diffcache.store.streams import Basis, Layout, Past

Tensors = dict[str, Tensor]

_tick = attrgetter("tick")


class StoreSetup:
    """What all stores of a denoiser share in one run.

    Args:
        predictor: predicts reused ticks.
        format: stores features.
        timetable: the run's timetable.
        corrector: repairs predictions; None: they are not repaired.
        hindsight: reused ticks are corrected when the next one is computed.

    Attributes:
        serving: for each decision, the predictor that carries it out.
        depth: the number of features that a ring can hold.
        steps_correct: hindsight corrects in the noise scheduler's steps (`GuidedSteps`), and not the denoiser's outputs.
        streams: tensors in the whole denoiser's output; 0 before its first call.
    """

    def __init__(
        self,
        predictor: Predictor,
        format: Format,
        timetable: Timetable,
        corrector: Corrector | None = None,
        *,
        hindsight: bool = False,
    ) -> None:
        self.format = format
        self.timetable = timetable
        self.corrector = corrector
        self.streams, self.steps_correct = 0, False
        self.predict_with(predictor, hindsight=hindsight)

    def predict_with(self, predictor: Predictor, *, hindsight: bool) -> None:
        """Reused ticks that come are predicted otherwise. See `StoreSetup` for the arguments; rings keep the depth that they have."""
        self.serving = {decision: predictor.serving(decision) for decision in Decision}
        self.hindsight = hindsight
        self.curve = predictor.curve
        self.depth = max(predictor.depth, self.curve.depth - 1) if hindsight else predictor.depth
        self._last: tuple[tuple[Any, ...], list[float]] = ((), [])

    @property
    def corrects_outputs(self) -> bool:
        """Whether hindsight corrects the denoiser's outputs."""
        return self.hindsight and not self.steps_correct

    def weights(self, decision: Decision, ring: Ring, step: Step) -> list[float]:
        """A weight for each of the ring's newest features, as many as the decision's predictor uses.

        Sites that were computed at the same ticks have the same weights, so the last weights are remembered.
        """
        key = (decision, step.tick, *map(_tick, ring))
        if key != self._last[0]:
            predictor = self.serving[decision]
            past = self.moments(ring)[: predictor.depth]
            self._last = key, predictor.weights(past, self.timetable.moment(step.tick))
        return self._last[1]

    def moments(self, ring: Ring) -> list[Moment]:
        """The moments of a ring's features, newest first."""
        return [self.timetable.moment(feature.tick) for feature in ring]


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

    def __init__(self, setup: StoreSetup) -> None:
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
        self, call: Call, output: Any, *, basis: Basis, continues: Mapping[int, str] | None = None
    ) -> Layout:
        """The layout of a computed call, learned anew if it looks different from the calls before.

        Their features are dropped then. For the arguments see `Layout`.
        """
        if self.layout is None or not self.layout.fits(call, output):
            self.empty(len(self.rings))
            self.layout = Layout(call, output, basis=basis, continues=continues)
        return self.layout

    def push(self, tick: int, lane: int, pairs: Sequence[Pair]) -> None:
        """Stores what a computed call returned, paired with the call's arguments (`Layout.pairs`)."""
        ring = self.rings[lane]
        before = len(ring)
        self.setup.format.push(ring, tick, pairs)
        if len(ring) != before:  # a feature that replaces another of the same layout takes as many bytes
            self.nbytes = sum(map(bytes_in_ring, self.rings))

    def recode(self, format: Format) -> None:
        """Keeps all features in another format. What was a residual one precision wider is rounded to fp32 at most."""
        for lane, ring in enumerate(self.rings):
            kept = [(ring[i].tick, self._feature(lane, i)) for i in range(len(ring))]
            ring.clear()
            for tick, tensors in reversed(kept):
                format.push(ring, tick, [(tensor, None) for tensor in tensors])
        self.nbytes = sum(map(bytes_in_ring, self.rings))

    def pairs(self, step: Step, tensors: Tensors, outputs: Sequence[Tensor]) -> list[Pair]:
        """What to store of a call that was computed at a step (see `Layout.pairs`)."""
        return self.learned.pairs(tensors, outputs, self.parametrisation(step.tick))

    def keep(self, step: Step, lane: int, outputs: list[Tensor], pairs: list[Pair]) -> list[Tensor]:
        """Stores what was computed, and returns the outputs; with hindsight they correct the lane's reused ticks.

        Args:
            step: the computed one.
            lane: index of the lane.
            outputs: what was computed.
            pairs: what is stored of them (`pairs`).
        """
        reused, self.reused[lane] = self.reused[lane], []
        corrects = bool(reused) and self.setup.corrects_outputs
        corrected = self._corrected(step, lane, outputs, pairs, reused) if corrects else outputs
        self.push(step.tick, lane, pairs)
        return corrected

    def note_reused(self, decision: Decision, step: Step, lane: int) -> None:
        """A call was predicted with this decision: the next computed one is to correct it, if hindsight can."""
        if self.setup.hindsight and self.setup.timetable.knows_influence(step.tick):
            self.reused[lane].append(ReusedTick(step.moment, self.setup.serving[decision]))

    def value(self, decision: Decision, step: Step, lane: int, tensors: Tensors) -> list[Tensor]:
        """Predicts the outputs of a call.

        Args:
            decision: a decision to reuse.
            step: tick and site.
            lane: index of the lane.
            tensors: the lane's part of the call's arguments.
        """
        past, corrector, corrections = self._past(decision, step, lane), self.setup.corrector, None
        if corrector is not None:
            corrections = [
                corrector.correction(step, stream, values_of(kept))
                for stream, kept in enumerate(past.features[0])
            ]
        return self._predicted(tensors, past, corrections, self.parametrisation(step.tick))

    def guess(self, decision: Decision, step: Step, lane: int, tensors: Tensors) -> list[Tensor]:
        """What a decision to reuse would have given at a computed step, to be compared with the first halves of `pairs`.

        These are velocities where velocities are stored, else outputs. Nothing is repaired.
        """
        return self._predicted(tensors, self._past(decision, step, lane), None, VELOCITY)

    def parametrisation(self, tick: int) -> Parametrisation:
        """What the site's outputs at a tick are, if velocities are stored."""
        return self.setup.timetable.parametrisation(tick) if self.learned.basis == "velocity" else VELOCITY

    def moments(self, lane: int) -> list[Moment]:
        """The moments of a lane's features, newest first."""
        return self.setup.moments(self.rings[lane])

    def newest(self, lane: int) -> tuple[Tensor, ...]:
        """A lane's newest feature: one tensor for each stream, as it is read from the format."""
        return self._feature(lane, 0)

    def kinds(self) -> Sequence[tuple[torch.dtype, bool]]:
        """For each stored tensor its dtype, and whether it is a residual."""
        return self.learned.kinds()

    @property
    def learned(self) -> Layout:
        """The layout of a store that has one."""
        assert self.layout is not None
        return self.layout

    def _feature(self, lane: int, index: int) -> tuple[Tensor, ...]:
        """A feature of a lane as it is read from the format; 0 is the newest."""
        features, weights = self.setup.format.read(self.rings[lane], [*[0.0] * index, 1.0])
        streams = zip(*features[index:], strict=True)
        return tuple(weighted_sum(past, weights[index:]) for past in streams)

    def _past(self, decision: Decision, step: Step, lane: int) -> Past:
        """What a decision to reuse adds up."""
        setup, ring = self.setup, self.rings[lane]
        weights = setup.weights(decision, ring, step)
        if setup.format.as_is:
            features: list[Sequence[Kept]] = [feature.tensors for feature in islice(ring, len(weights))]
        else:
            features, weights = setup.format.read(ring, weights)
        if not self.learned.learns_variance:
            return Past(features, weights)
        return Past(features, weights, setup.format.reading([1.0, *[0.0] * (len(features) - 1)]))

    def _predicted(
        self,
        tensors: Tensors,
        past: Past,
        corrections: Sequence[Correction] | None,
        at: Parametrisation,
    ) -> list[Tensor]:
        try:
            return self.learned.predict(tensors, past, corrections, at)
        except BaseException as error:
            forget_on_error(past.features, error)
            raise

    def _corrected(
        self,
        step: Step,
        lane: int,
        outputs: list[Tensor],
        pairs: list[Pair],
        reused: list[ReusedTick],
    ) -> list[Tensor]:
        """Computed outputs that correct the `reused` ticks before them (see `hindsight`)."""
        setup, now = self.setup, self.parametrisation(step.tick).of_velocity
        timetable = setup.timetable
        ratio = timetable.velocity_ratio if self.learned.basis == "velocity" else timetable.ratio
        own, *others = hindsight_weights(reused, step.moment, self.moments(lane), ratio, setup.curve)
        past = Past(*setup.format.read(self.rings[lane], [now * weight for weight in others]))
        try:
            return self.learned.corrected(outputs, pairs, now * own, past, now, doubted=setup.curve.doubted)
        except BaseException as error:
            forget_on_error(past.features, error)
            raise
