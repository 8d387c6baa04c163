"""The engine: executes one method on one denoiser over one run. It knows no method and no model."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from diffcache.adapters import adapters_of
from diffcache.branches import MAX_BRANCHES, Branch, Branches, conditioning_of
from diffcache.calls import Call
from diffcache.config import CacheConfig, RunFacts
from diffcache.layout import Layout
from diffcache.predictors import Hold, Moment, Predictor
from diffcache.records import RunRecord
from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.guards import NAN, History
from diffcache.schedulers.steps import Step
from diffcache.store import Feature, Ring
from diffcache.timetable import Timetable
from diffcache.watch import OFF_BOUND, Watch

Forward = Callable[..., Any]

GRADIENTS = "gradients enabled: run the loop under torch.no_grad()"
TRAINING = "training mode: call .eval() on the denoiser"
TOO_MANY_CALLS = "steps not observed: the noise scheduler was not stepped between calls"
NO_LATENT = "no floating tensor among the denoiser's arguments"
CHANGED = "the call's shapes, dtypes, devices, adapters or optional inputs changed"
WRITES_INPUT = "the denoiser writes into its arguments"
OTHER_BATCH = "per_sample: not the leading branch's batch size"
FOLLOWER_FIRST = "arrived before the leading branch"


@dataclass(slots=True)
class Verdict:
    """What is done at one call with one lane; `reason` is set when a guard, not the method, made it compute."""

    compute: bool
    reason: str | None = None


@dataclass(slots=True)
class Lane:
    """What is decided together: the whole batch, or one sample with `per_sample`.

    Attributes:
        scheduler: when.
        watch: how far the predictor can be trusted; None where the method does not ask for one.
        refreshed: tick that the leading branch computed last.
    """

    scheduler: CacheScheduler
    watch: Watch | None
    refreshed: int | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where in its run a denoiser call stands, as far as the loop knows.

    Attributes:
        tick: of the run.
        timetable: the run's noise levels.
        context: the guidance pass's name, where the pipeline gives one.
        by_order: tell guidance passes apart by their order inside the tick.
    """

    tick: int
    timetable: Timetable
    context: str | None
    by_order: bool

    def step(self, branch: str) -> Step:
        times = self.timetable
        return Step(self.tick, times.num_ticks, branch, times.sigma(self.tick), times.repeats(self.tick))


class Engine:
    """One denoiser in one run.

    Each lane has its own cache scheduler, and each branch one ring of features per lane.

    Args:
        site: the denoiser's name in the report.
        config: the method.
        facts: what the method may know of the run.
        record: where every call is written down.
    """

    def __init__(self, site: str, config: CacheConfig, facts: RunFacts, record: RunRecord) -> None:
        self.site = site
        self.config = config
        self.facts = facts
        self.record = record
        self.guards = config.guards(facts)
        self.predictor = config.predictor_for(facts)
        self.branches = Branches()
        self.lanes: list[Lane] = []
        self.leader: Branch | None = None
        self.plan: list[Verdict] = []
        self.planned_tick = -1
        self.busy = False

    def call(
        self, module: nn.Module, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any], place: Place
    ) -> Any:
        """One denoiser call: decide, then compute and store, or predict."""
        if self.busy:  # an OptimizedModule that fell back to its eager original: the outer call has decided
            return forward(*args, **kwargs)
        call = Call(module, args, kwargs)
        self.branches.begin_tick(place.tick)
        obstacle = self._obstacle(module, call, place.tick)
        if obstacle is not None:
            self.record.add(
                place.tick, str(self.branches.calls_in_tick), self.site, 1.0, obstacle, call.batch
            )
            return self._inside(forward, args, kwargs)
        branch = self._branch(module, call, place)
        step = place.step(branch.name)
        verdicts = self._verdicts(step, branch, call)
        rows = [i for i, verdict in enumerate(verdicts) if verdict.compute]
        reason = next((verdict.reason for verdict in verdicts if verdict.reason), None)
        self.record.add(step.tick, branch.name, self.site, len(rows) / len(verdicts), reason, call.batch)
        if len(rows) == len(verdicts):
            return self._compute(place, branch, call, forward)
        return self._reuse(place, branch, call, forward, rows)

    def close(self) -> None:
        """Drops every tensor. Explicit: a traceback that somebody keeps would keep this object alive."""
        self.branches.clear()
        self.lanes, self.plan, self.leader = [], [], None

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor that is alive for the cache's sake."""
        for branch in self.branches.known:
            yield from branch.tensors()
        for lane in self.lanes:
            yield from lane.scheduler.held()

    # -- deciding ------------------------------------------------------------------------------------------------

    def _obstacle(self, module: nn.Module, call: Call, tick: int) -> str | None:
        """Why this call is computed without being looked at, or None."""
        if torch.is_grad_enabled():
            return GRADIENTS
        if module.training:
            return TRAINING
        if self.branches.calls_in_tick >= MAX_BRANCHES:
            return TOO_MANY_CALLS
        if not call.latents:
            return NO_LATENT
        follows = self.leader is not None and self.leader.tick == tick
        return OTHER_BATCH if follows and self._lane_count(call) != len(self.lanes) else None

    def _branch(self, module: nn.Module, call: Call, place: Place) -> Branch:
        evolving = self.leader.layout.sources() if self.leader and self.leader.layout else set()
        conditioning = {} if place.by_order else conditioning_of(call, evolving)
        branch = self.branches.identify(conditioning, place.context, by_order=place.by_order)
        fingerprint = (call.fingerprint(), adapters_of(module))
        if branch.fingerprint != fingerprint:
            branch.changed = bool(branch.rings)
            branch.rings, branch.fingerprint = [], fingerprint
        return branch

    def _verdicts(self, step: Step, branch: Branch, call: Call) -> list[Verdict]:
        """One verdict per lane: the guards', else the tick's plan, which the leading branch makes."""
        self._seat(branch, call, step)
        forced = [self._forced(step, branch, lane) for lane in range(len(self.lanes))]
        if branch is self.leader:
            self.plan, self.planned_tick = self._decide(step, branch, call, forced), step.tick
            return self.plan
        if self.planned_tick != step.tick:
            return [Verdict(True, reason or FOLLOWER_FIRST) for reason in forced]
        return [
            planned if planned.compute or reason is None else Verdict(True, reason)
            for planned, reason in zip(self.plan, forced, strict=True)
        ]

    def _seat(self, branch: Branch, call: Call, step: Step) -> None:
        """Elects the leader (the run's first branch, or the next one when it has left) and sets up the lanes."""
        left = self.leader is None or self.leader.tick < step.tick - 1
        lanes = self._lane_count(call)
        if left or (branch is self.leader and (branch.changed or lanes != len(self.lanes))):
            self.leader = branch
            self.lanes = [self._lane() for _ in range(lanes)]
        if len(branch.rings) != len(self.lanes):
            branch.rings = [Ring(self.predictor.depth) for _ in self.lanes]

    def _lane(self) -> Lane:
        bound = self.config.watch
        return Lane(
            self.config.scheduler(self.facts), None if bound is None else Watch(self.predictor, bound)
        )

    def _lane_count(self, call: Call) -> int:
        if not getattr(self.config, "per_sample", False):
            return 1
        if not call.batched:
            raise ConfigError(
                f"per_sample needs latents in one tensor, but {self.site} takes a list: switch it off."
            )
        return call.batch

    def _forced(self, step: Step, branch: Branch, lane: int) -> str | None:
        refreshed = None if branch is self.leader else self.lanes[lane].refreshed
        reason = self.guards.forces_compute(step, History(branch.rings[lane].last_computed, refreshed))
        return (
            CHANGED if reason is not None and branch.changed and not branch.rings[lane].features else reason
        )

    def _decide(self, step: Step, branch: Branch, call: Call, forced: Sequence[str | None]) -> list[Verdict]:
        """Asks the cache scheduler of every lane that no guard has decided; one host read for all of them."""
        signals = {
            i: lane.scheduler.measure(self._measured(branch, call, i))
            for i, lane in enumerate(self.lanes)
            if forced[i] is None
        }
        known = {i: signal for i, signal in signals.items() if signal is not None}
        read = dict(zip(known, torch.stack(list(known.values())).tolist(), strict=True)) if known else {}
        verdicts = [Verdict(True, reason) for reason in forced]
        for i in signals:
            compute = self.lanes[i].scheduler.decide(step, read.get(i))
            finite = all(abs(value) < float("inf") for value in read.get(i, ()))
            verdicts[i] = Verdict(compute, None) if finite else Verdict(True, NAN)
            watch = self.lanes[i].watch
            if watch is not None and not verdicts[i].compute and not watch.trusted:
                verdicts[i] = Verdict(True, OFF_BOUND)
        return verdicts

    # -- computing and reusing -----------------------------------------------------------------------------------

    def _inside(self, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.busy = True
        try:
            return forward(*args, **kwargs)
        finally:
            self.busy = False

    def _compute(self, place: Place, branch: Branch, call: Call, forward: Forward) -> Any:
        before = call.state()
        output = self._inside(forward, call.args, call.kwargs)
        if call.state() != before:  # a K/V cache, a list of outputs: skipping the call would skip the write
            self.record.amend(WRITES_INPUT)
            branch.clear()
            return output
        branch.layout = layout = Layout(call, output, residual=self.config.residual)
        outputs = layout.split(output)
        for lane in range(len(self.lanes)):
            self._arrived(branch, call, lane)
            self._store(place, branch, lane, self._rows(call.tensors, lane), self._cut(outputs, lane))
        branch.changed = False
        self.record.hold(self.tensors())
        return output

    def _reuse(self, place: Place, branch: Branch, call: Call, forward: Forward, rows: list[int]) -> Any:
        """Predicts the lanes that are reused; those in `rows` are computed as one smaller batch."""
        assert branch.layout is not None  # a branch with something stored has been computed
        computed: dict[int, list[Tensor]] = {}
        if rows:
            args, kwargs = call.rows(rows)
            outputs = branch.layout.split(self._inside(forward, args, kwargs))
            computed = {lane: [tensor[i : i + 1] for tensor in outputs] for i, lane in enumerate(rows)}
        lanes = []
        for lane in range(len(self.lanes)):
            tensors = self._rows(call.tensors, lane)
            self._arrived(branch, call, lane)
            if lane in computed:
                self._store(place, branch, lane, tensors, computed[lane])
                lanes.append(computed[lane])
            else:
                lanes.append(self._predict(place, branch, lane, tensors))
        self.record.hold(self.tensors())
        joined = lanes[0] if len(lanes) == 1 else [torch.cat(parts) for parts in zip(*lanes, strict=True)]
        return branch.layout.join(joined, call.tensors)

    def _predict(self, place: Place, branch: Branch, lane: int, tensors: dict[str, Tensor]) -> list[Tensor]:
        watch = self.lanes[lane].watch
        predictor = self.predictor if watch is None else watch.predictor
        return self._value(predictor, place, branch, lane, tensors)

    def _value(
        self, predictor: Predictor, place: Place, branch: Branch, lane: int, tensors: dict[str, Tensor]
    ) -> list[Tensor]:
        assert branch.layout is not None
        past = list(branch.rings[lane].features)[: predictor.depth]
        ticks = (*(feature.tick for feature in past), place.tick)
        moments = [Moment(tick, place.timetable.sigma(tick)) for tick in ticks]
        weights = predictor.weights(moments[:-1], moments[-1])
        return branch.layout.predict(tensors, [feature.tensors for feature in past], weights)

    def _compare(
        self, place: Place, branch: Branch, lane: int, tensors: dict[str, Tensor], v: list[Tensor]
    ) -> None:
        """Lets the watch see what the leading branch would have been given instead of what was computed."""
        watch = self.lanes[lane].watch
        if watch is None or branch is not self.leader or len(branch.rings[lane].features) < 2:
            return
        assert branch.layout is not None
        predicted = self._value(self.predictor, place, branch, lane, tensors)
        held = self._value(Hold(), place, branch, lane, tensors)
        evolved = branch.layout.evolved
        watch.compare(evolved(predicted), evolved(held), evolved(v))

    def _store(
        self, place: Place, branch: Branch, lane: int, tensors: dict[str, Tensor], outputs: list[Tensor]
    ) -> None:
        assert branch.layout is not None
        self._compare(place, branch, lane, tensors, outputs)
        features = branch.layout.features(tensors, outputs)
        branch.rings[lane].push(Feature(place.tick, features))
        if branch is self.leader:
            self.lanes[lane].refreshed = place.tick
            self.lanes[lane].scheduler.computed(
                branch.layout.latents(tensors), branch.layout.evolved(outputs)
            )

    def _arrived(self, branch: Branch, call: Call, lane: int) -> None:
        if branch is self.leader:
            self.lanes[lane].scheduler.arrived(self._measured(branch, call, lane))

    # -- lanes ---------------------------------------------------------------------------------------------------

    def _measured(self, branch: Branch, call: Call, lane: int) -> list[Tensor]:
        assert branch.layout is not None
        return branch.layout.latents(self._rows(call.tensors, lane))

    def _rows(self, tensors: dict[str, Tensor], lane: int) -> dict[str, Tensor]:
        """The call's tensors for one lane."""
        if len(self.lanes) == 1:
            return tensors
        batch = len(self.lanes)
        return {p: t[lane : lane + 1] if t.ndim and t.shape[0] == batch else t for p, t in tensors.items()}

    def _cut(self, outputs: list[Tensor], lane: int) -> list[Tensor]:
        return outputs if len(self.lanes) == 1 else [tensor[lane : lane + 1] for tensor in outputs]
