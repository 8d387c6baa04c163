"""The decider: here it is decided, once per tick, what is computed and what is reused."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from diffcache.discovery.sites import Site
from diffcache.engine.branch import Branch
from diffcache.engine.choices import Choices
from diffcache.engine.observers import NOBODY, observer_now
from diffcache.engine.prediction_watch import OFF_BOUND, PredictionWatch
from diffcache.engine.vote import Vote, settled
from diffcache.host.parallel import Agreement
from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.guards import NAN, NO_SIGNAL, Guards, History
from diffcache.schedulers.steps import MODEL, Decision, Step, Verdict
from diffcache.store.rings import Store
from diffcache.store.streams import Layout

Seen = Callable[[int], list[Tensor]]
"""What signals look at in a lane: the latents, or what a tap inside the denoiser gives."""

CHANGED = "the call's shapes, dtypes, devices, adapters or optional inputs changed"
FOLLOWER_FIRST = "arrived before the leading branch"
REJECTED = "its prediction was verified, and rejected"


@dataclass(slots=True)
class Lane:
    """What is decided together: the whole batch, or one sample with `per_sample`.

    Attributes:
        scheduler: when.
        prediction_watch: how far the predictor can be trusted; None where the method does not ask for one.
        refreshed: tick that the leading branch computed last, by site.
    """

    scheduler: CacheScheduler
    prediction_watch: PredictionWatch | None
    refreshed: dict[str, int] = field(default_factory=dict)


class Decider:
    """Decides for one denoiser over one run.

    The leading branch (the run's first; the next one when it leaves) decides for the tick. The others obey it, unless a guard
    of their own makes them compute. A
    static method decides for each site, an adaptive one once for all of them, at the first that the forward reaches. A
    method whose schedule names branches is asked for each branch instead. Guards come first, and can only make it
    compute. Where several processes compute the denoiser together, what depends on what they see is settled among them.

    Args:
        choices: the method's.
        agreement: among the processes that compute the denoiser together, if several do.

    Attributes:
        lanes: what is decided together; none before the first call.
        leader: the leading branch.
        observer: that looks on at the run.
    """

    def __init__(self, choices: Choices, agreement: Agreement | None) -> None:
        self.choices = choices
        self.observer = observer_now()
        self.lanes: list[Lane] = []
        self.leader: Branch | None = None
        self._agreement = agreement
        self._decided: dict[str, list[Verdict]] = {}
        self._sites_are_alike = False
        self._tick = -1

    def begin_call(self, branch: Branch, tick: int, lanes: int) -> None:
        """A branch is called at a tick, before anything is decided: it is elected, if nobody leads or the leader has left or changed.

        Args:
            lanes: how many there are in this call.
        """
        left = self.leader is None or self.leader.tick < tick - 1
        if left or (branch is self.leader and (branch.changed or lanes != len(self.lanes))):
            self._elect(branch, lanes)
        if tick != self._tick:
            self._decided, self._tick = {}, tick

    def deciding(
        self, step: Step, branch: Branch, seen: Seen, lanes: int
    ) -> Generator[Vote, list[Decision], list[Verdict]]:
        """One verdict for each lane, at the site of `step`. Yields a vote where processes decide together, and is sent what all of them do.

        Args:
            seen: what signals are measured on.
            lanes: how many there are in this call.
        """
        store = branch.store(step.site, lanes)
        forced = [self._forced(step, branch, store, lane) for lane in range(lanes)]
        if self.choices.each_branch:
            return (yield from self._decide(step, seen, forced))
        site = "" if self.lanes[0].scheduler.adaptive else step.site
        decided = self._decided.get(site)
        if decided is None:
            if branch is self.leader:
                decided = self._decided[site] = yield from self._decide(step, seen, forced)
                return decided
            verdicts = [Verdict(Decision.COMPUTE, reason or FOLLOWER_FIRST) for reason in forced]
        else:
            verdicts = [
                verdict if reason is None or verdict.decision.computes else Verdict(Decision.COMPUTE, reason)
                for verdict, reason in zip(decided, forced, strict=True)
            ]
        if self._agreement is not None and self._agreement.always:
            return (yield from settled(self._agreement, verdicts))
        return verdicts

    def site_verdicts(
        self, step: Step, branch: Branch, sites: Sequence[Site], seen: Seen
    ) -> list[tuple[Step, list[Verdict]]]:
        """For each site inside a denoiser the step at it, and its verdict; sites that are alike are decided once."""
        leads, found = branch is self.leader, []
        refreshed, known = self.lanes[0].refreshed, dict[tuple[object, ...], list[Verdict]]()
        for site in sites:
            at = step._replace(site=site.name, kind=site.kind)
            if not self._sites_are_alike:
                found.append((at, self._verdicts(at, branch, seen)))
                continue
            store = branch.stores.get(site.name)
            last = store.last_computed(0) if store is not None and store.rings else None
            alike: tuple[object, ...] = (last,)
            if not leads:
                alike = (last, refreshed.get(site.name), *self._decided.get(site.name, ()))
            if alike not in known:
                known[alike] = self._verdicts(at, branch, seen)
            elif leads:
                self._decided[site.name] = known[alike]
            found.append((at, known[alike]))
        return found

    def verifies(self, branch: Branch, step: Step) -> bool:
        """Whether the last site of a reused tick is to be computed too. Only the leading branch is verified."""
        return (
            branch is self.leader and not self.choices.each_branch and self.lanes[0].scheduler.verifies(step)
        )

    def accepts(self, step: Step, guess: Sequence[Tensor], truth: Sequence[Tensor]) -> bool:
        """Whether a verified tick stays reused; if not, all branches compute it."""
        accepted = self.lanes[0].scheduler.accepts(step, guess, truth)
        decision = Decision.PREDICT if accepted else Decision.COMPUTE
        if self._agreement is not None:
            (decision,) = Vote(self._agreement, [decision]).settled()
        if decision.computes:
            self._decided = {"": [Verdict(decision, REJECTED)]}
        return not decision.computes

    def arrived(self, branch: Branch, lane: int, seen: list[Tensor]) -> None:
        """Tells the cache scheduler what signals are measured on in this call, if the branch leads."""
        scheduler = self.lanes[lane].scheduler
        if scheduler.looks_on and branch is self.leader:
            scheduler.arrived(seen)

    def computed(
        self, branch: Branch, lane: int, step: Step, seen: list[Tensor], outputs: list[Tensor]
    ) -> None:
        """Tells the cache scheduler what a computed site has returned, if the branch leads."""
        if branch is self.leader:
            self.lanes[lane].refreshed[step.site] = step.tick
            self.lanes[lane].scheduler.computed(seen, outputs)

    @property
    def looks_at_outputs(self) -> bool:
        """Whether an observer or the cache scheduler looks at what computed sites returned."""
        return self.observer is not NOBODY or any(lane.scheduler.looks_at_outputs for lane in self.lanes)

    def observe(self, step: Step, store: Store, lane: int, outputs: Sequence[Tensor]) -> None:
        """Lets an observer, if there is one, see what has been stored of a computed site."""
        if self.observer is not NOBODY:
            self.tell(step, store.learned, store.newest(lane), outputs)

    def tell(self, step: Step, layout: Layout, features: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Tells the observer of a computed site."""
        denoiser = self.choices.facts.denoiser
        self.observer.computed(denoiser, step, features, outputs, layout.of_first_latent)

    def follows(self, tick: int) -> bool:
        """Whether the leading branch has been called in this tick already."""
        return self.leader is not None and self.leader.tick == tick

    @property
    def expects_error(self) -> bool:
        """Whether an error is expected of the result."""
        return any(lane.scheduler.expects_error for lane in self.lanes)

    def expected_error(self, computed: Sequence[int]) -> float | None:
        """Of the result if nothing was reused at these ticks: that of the worst lane, as a fraction of the contrast; None where none is expected."""
        expected = [lane.scheduler.expected_error(computed) for lane in self.lanes]
        return max((error for error in expected if error is not None), default=None)

    def remark(self, expected: float) -> str | None:
        """What the report is to say where this error is expected of the result; None: nothing."""
        return self.lanes[0].scheduler.remark(expected)

    def choose_anew(self, choices: Choices) -> None:
        """The method has chosen again, after a tick of which nothing was measured. Decisions of this tick stand."""
        self.choices = choices
        for lane in self.lanes:
            lane.scheduler = choices.scheduler()

    def forget(self) -> None:
        """Starts anew with the same leader: what was measured so far is dropped. Decisions of this tick stand."""
        if self.leader is not None:
            self._elect(self.leader, len(self.lanes))

    def clear(self) -> None:
        """Drops everything."""
        self.lanes, self._decided, self.leader = [], {}, None

    def _verdicts(self, step: Step, branch: Branch, seen: Seen) -> list[Verdict]:
        """The verdict at a site inside a denoiser, which has one lane; a vote is settled at once."""
        deciding = self.deciding(step, branch, seen, 1)
        try:
            vote = next(deciding)
            while True:
                vote = deciding.send(vote.settled())
        except StopIteration as end:
            found: list[Verdict] = end.value
            return found

    def _elect(self, branch: Branch, lanes: int) -> None:
        choices = self.choices
        self.leader = branch
        self.lanes = [
            Lane(
                choices.scheduler(),
                None if choices.watch_bound is None else PredictionWatch(choices.watch_bound),
            )
            for _ in range(lanes)
        ]
        by_site = self.lanes[0].scheduler.by_site or type(choices.guards) is not Guards
        self._sites_are_alike = lanes == 1 and not by_site and not choices.each_branch

    def _forced(self, step: Step, branch: Branch, store: Store, lane: int) -> str | None:
        """Why a guard makes the branch compute, or None."""
        obeys = branch is not self.leader and not self.choices.each_branch
        refreshed = self.lanes[lane].refreshed.get(step.site) if obeys else None
        last = store.last_computed(lane)
        reason = self.choices.guards.forces_compute(step, History(last, refreshed))
        return CHANGED if reason is not None and last is None and branch.changed else reason

    def _decide(
        self, step: Step, seen: Seen, forced: Sequence[str | None]
    ) -> Generator[Vote, list[Decision], list[Verdict]]:
        """Asks the cache scheduler of every lane that no guard has decided."""
        signals = self._signals(seen, forced) if self.lanes[0].scheduler.adaptive else {}
        for signal in signals.values():
            self.observer.measured(self.choices.facts.denoiser, step, signal)
        verdicts = []
        for lane, reason, i in zip(self.lanes, forced, range(len(forced)), strict=True):
            if reason is not None:
                verdicts.append(Verdict(Decision.COMPUTE, reason))
            elif lane.scheduler.adaptive or lane.prediction_watch is not None:
                verdicts.append(self._checked(lane, step, signals.get(i)))
            else:
                verdicts.append(Verdict(lane.scheduler.decide(step, None)))
        lane, agreement = self.lanes[0], self._agreement
        measured = lane.scheduler.adaptive or (lane.prediction_watch is not None and step.site == MODEL)
        if agreement is None or not (measured or agreement.always):
            return verdicts  # nothing is asked where all processes decide the same anyhow
        return (yield from settled(agreement, verdicts))

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
        values: list[list[float]] = torch.stack(list(measured.values())).tolist()
        return dict(zip(measured, values, strict=True))

    def _checked(self, lane: Lane, step: Step, signal: list[float] | None) -> Verdict:
        """The cache scheduler's decision, unless its signal or the watch speaks against it."""
        decision = lane.scheduler.decide(step, signal)
        if signal is not None and any(not abs(value) < float("inf") for value in signal):
            return Verdict(Decision.COMPUTE, NAN)
        # A cache scheduler that compares has a plan before anything is measured.
        waits = lane.scheduler.adaptive and not lane.scheduler.compares
        if signal is None and waits and decision.computes:
            return Verdict(Decision.COMPUTE, NO_SIGNAL)
        if decision.computes:
            return Verdict(decision)
        if lane.prediction_watch is None or decision is not Decision.PREDICT:
            return Verdict(decision)
        if not lane.prediction_watch.trusts_any:
            return Verdict(Decision.COMPUTE, OFF_BOUND)
        ahead = step.tick - lane.refreshed.get(step.site, step.tick)
        return Verdict(Decision.PREDICT if lane.prediction_watch.trusts_prediction(ahead) else Decision.HOLD)
