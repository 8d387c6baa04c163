"""The planner: here it is decided, once per tick, what is computed and what is reused."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from diffcache.config import CacheConfig, RunFacts
from diffcache.engine.branches import Branch
from diffcache.engine.observers import NOBODY, observer_now
from diffcache.engine.watch import OFF_BOUND, Watch
from diffcache.host.parallel import Agreement
from diffcache.noise_schedulers.timetable import Timetable
from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.guards import NAN, NO_SIGNAL, Guards, History
from diffcache.schedulers.steps import MODEL, Decision, Step
from diffcache.store.rings import Store, Tensors

Seen = Callable[[int], list[Tensor]]
"""What signals look at in a lane: the latents, or what a tap inside the denoiser gives."""

CHANGED = "the call's shapes, dtypes, devices, adapters or optional inputs changed"
FOLLOWER_FIRST = "arrived before the leading branch"
OUTVOTED = "another process that computes the denoiser with this one decided so"


class Verdict(NamedTuple):
    """What is done at one call with one lane; `reason` is set when a guard, not the method, made it compute."""

    decision: Decision
    reason: str | None = None


@dataclass(slots=True)
class Lane:
    """What is decided together: the whole batch, or one sample with `per_sample`.

    Attributes:
        scheduler: when.
        watch: how far the predictor can be trusted; None where the method does not ask for one.
        refreshed: tick that the leading branch computed last, by site.
    """

    scheduler: CacheScheduler
    watch: Watch | None
    refreshed: dict[str, int] = field(default_factory=dict)


class Planner:
    """Decides for one denoiser over one run.

    The leading branch (the run's first; the next one when it leaves) makes the tick's plan, and the others obey it. A
    static method plans for each site, an adaptive one once for all of them, at the first that the forward reaches. A
    method whose schedule names branches is asked for each branch instead. Guards come first, and can only make it
    compute. Where several processes compute the denoiser together, what depends on what they see is settled among them.
    """

    def __init__(self, config: CacheConfig, facts: RunFacts, agreement: Agreement | None = None) -> None:
        self.config = config
        self.facts = facts
        self.agreement = agreement
        self.each_branch = config.each_branch
        self.guards = config.guards(facts)
        self.predictor = config.predictor_for(facts)
        self.corrector = config.corrector(facts)
        repaired = self.corrector is not None  # is no weighted sum of features any more
        self.looks_back = config.looks_back and facts.evolves and not repaired
        self.observer = observer_now()
        self.lanes: list[Lane] = []
        self.leader: Branch | None = None
        self._plans: dict[str, list[Verdict]] = {}
        self._by_age: dict[int | None, list[Verdict]] = {}
        self._sites_are_alike = False
        self._planned_tick = -1

    def begin(self, branch: Branch, tick: int, lanes: int) -> None:
        """A call of a branch is to be decided, in so many lanes: elects the leader, and sets up the lanes."""
        left = self.leader is None or self.leader.tick < tick - 1
        if left or (branch is self.leader and (branch.changed or lanes != len(self.lanes))):
            self.leader = branch
            self.lanes = [self._lane() for _ in range(lanes)]
            by_site = self.lanes[0].scheduler.by_site or type(self.guards) is not Guards
            self._sites_are_alike = lanes == 1 and not by_site and not self.each_branch
        if tick != self._planned_tick:
            self._plans, self._by_age, self._planned_tick = {}, {}, tick

    def verdicts(self, step: Step, branch: Branch, seen: Seen) -> list[Verdict]:
        """One verdict for each lane, at the site of `step`; `seen` is what signals are measured on."""
        store = branch.store(step.site, len(self.lanes))
        last = store.last_computed(0)
        if self._sites_are_alike and branch is self.leader and last in self._by_age:
            self._plans[step.site] = self._by_age[last]  # the same would come out
            return self._by_age[last]
        forced = [self._forced(step, branch, store, lane) for lane in range(len(self.lanes))]
        if self.each_branch:
            return self._decide(step, seen, forced)
        plan = "" if self.lanes[0].scheduler.adaptive else step.site
        if branch is self.leader and plan not in self._plans:
            self._plans[plan] = self._by_age[last] = self._decide(step, seen, forced)
            return self._plans[plan]
        if plan not in self._plans:
            return [Verdict(Decision.COMPUTE, reason or FOLLOWER_FIRST) for reason in forced]
        return [
            planned if planned.decision.computes or reason is None else Verdict(Decision.COMPUTE, reason)
            for planned, reason in zip(self._plans[plan], forced, strict=True)
        ]

    def value(
        self, verdict: Verdict, step: Step, store: Store, times: Timetable, lane: int, tensors: Tensors
    ) -> list[Tensor]:
        """The outputs of a lane that is reused."""
        predictor = self.predictor.serving(verdict.decision)
        return store.value(predictor, step, times, lane, tensors, self.corrector)

    def observe(self, step: Step, store: Store, lane: int, outputs: Sequence[Tensor]) -> None:
        """Lets an observer, if there is one, see what has been stored of a computed site."""
        if self.observer is not NOBODY:
            self.observer.computed(self.facts.site, step, store.newest(lane), outputs)

    def arrived(self, branch: Branch, lane: int, seen: list[Tensor]) -> None:
        """A call of the leading branch in which signals see this has been decided."""
        if branch is self.leader:
            self.lanes[lane].scheduler.arrived(seen)

    def computed(
        self, branch: Branch, lane: int, step: Step, seen: list[Tensor], outputs: list[Tensor]
    ) -> None:
        """And its site has been computed."""
        if branch is self.leader:
            self.lanes[lane].refreshed[step.site] = step.tick
            self.lanes[lane].scheduler.computed(seen, outputs)

    def follows(self, tick: int) -> bool:
        """Whether the leading branch has been called in this tick already."""
        return self.leader is not None and self.leader.tick == tick

    def clear(self) -> None:
        self.lanes, self._plans, self._by_age, self.leader = [], {}, {}, None

    def tensors(self) -> Iterator[Tensor]:
        """The tensors that cache schedulers and corrector keep."""
        for lane in self.lanes:
            yield from lane.scheduler.held()
        if self.corrector is not None:
            yield from self.corrector.tensors()

    def _lane(self) -> Lane:
        bound = self.config.watch
        return Lane(self.config.scheduler(self.facts), None if bound is None else Watch(bound))

    def _forced(self, step: Step, branch: Branch, store: Store, lane: int) -> str | None:
        obeys = branch is not self.leader and not self.each_branch
        refreshed = self.lanes[lane].refreshed.get(step.site) if obeys else None
        last = store.last_computed(lane)
        reason = self.guards.forces_compute(step, History(last, refreshed))
        return CHANGED if reason is not None and last is None and branch.changed else reason

    def _decide(self, step: Step, seen: Seen, forced: Sequence[str | None]) -> list[Verdict]:
        """Asks the cache scheduler of every lane that no guard has decided."""
        signals = self._signals(seen, forced) if self.lanes[0].scheduler.adaptive else {}
        for signal in signals.values():
            self.observer.measured(self.facts.site, step, signal)
        verdicts = [
            self._judge(self.lanes[i], step, signals.get(i))
            if reason is None
            else Verdict(Decision.COMPUTE, reason)
            for i, reason in enumerate(forced)
        ]
        return verdicts if self.agreement is None else self._settled(step, verdicts, self.agreement)

    def _settled(self, step: Step, verdicts: list[Verdict], agreement: Agreement) -> list[Verdict]:
        """What all processes do; nothing is asked where all decide the same anyhow."""
        lane = self.lanes[0]
        measured = lane.scheduler.adaptive or (lane.watch is not None and step.site == MODEL)
        if not measured:
            return verdicts
        settled = agreement.settle([verdict.decision for verdict in verdicts])
        return [
            verdict
            if verdict.decision is decision
            else Verdict(decision, OUTVOTED if decision.computes else None)
            for verdict, decision in zip(verdicts, settled, strict=True)
        ]

    def _signals(self, seen: Seen, forced: Sequence[str | None]) -> dict[int, list[float]]:
        """The signals of the lanes that are not forced, where they have one; all are read from the device at once."""
        measured = {}
        for i, reason in enumerate(forced):
            streams = seen(i) if reason is None else []
            signal = self.lanes[i].scheduler.measure(streams) if streams else None
            if signal is not None:
                measured[i] = signal
        if not measured:
            return {}
        return dict(zip(measured, torch.stack(list(measured.values())).tolist(), strict=True))

    def _judge(self, lane: Lane, step: Step, signal: list[float] | None) -> Verdict:
        decision = lane.scheduler.decide(step, signal)
        if signal is not None and any(not abs(value) < float("inf") for value in signal):
            return Verdict(Decision.COMPUTE, NAN)
        if signal is None and lane.scheduler.adaptive and decision.computes:
            return Verdict(Decision.COMPUTE, NO_SIGNAL)
        if lane.watch is None or decision is not Decision.PREDICT:
            return Verdict(decision)
        if not lane.watch.trusts_any:
            return Verdict(Decision.COMPUTE, OFF_BOUND)
        ahead = step.tick - lane.refreshed.get(step.site, step.tick)
        return Verdict(Decision.PREDICT if lane.watch.trusts_prediction(ahead) else Decision.HOLD)
