"""An engine that goes through a run with its own decisions, while nothing is computed or stored.

The first call of each form is real, and shows the denoiser's sites; all others return zeros. What is stored lies on the
meta device. So the decisions are those of the run, and so is what it holds, for a method that does not look at content.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from diffcache.discovery.site_names import is_inside
from diffcache.discovery.sites import Site
from diffcache.engine.branch import Branch
from diffcache.engine.choices import Choices
from diffcache.engine.comparison import Comparison, Streams
from diffcache.engine.decider import Lane
from diffcache.engine.engine import Engine
from diffcache.engine.execution import Carried, Execution, Invocation, Parts, carried_out
from diffcache.engine.first_pass import store_site
from diffcache.engine.inner_sites import InnerSites
from diffcache.engine.prediction_watch import COMPARED
from diffcache.engine.progress import Progress
from diffcache.engine.whole_model import WholeModel
from diffcache.host.call import Call
from diffcache.host.rows import is_doubled, lane_of
from diffcache.planning.meta_tokens import DrySomeTokens
from diffcache.planning.recorded_calls import RecordedCalls
from diffcache.reports.records import Done, RunRecord
from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.steps import MODEL, Decision, Step
from diffcache.store.formats import Format
from diffcache.store.rings import Store, Tensors
from diffcache.store.streams import Layout
from diffcache.tokens.learning import TokenPlan


class MetaEngine(Engine):
    """One denoiser in one dry run. Everything it holds lies on the meta device, but for the arguments of calls.

    Args:
        choices, record, progress: as for `Engine`.
        recorded: real calls, which stand in for those of the same form.
        note: called whenever more may be held than before; with what a first call keeps, before that is held.

    Attributes:
        is_doubled: its calls hold two equal halves: both guidance passes.
        names: of its guidance passes, in order.
        sites: sites inside that are cached.
        is_adaptive: decisions depend on content.
        tokens: how some tokens are computed, where that is asked for and possible.
    """

    def __init__(
        self,
        choices: Choices,
        record: RunRecord,
        progress: Progress,
        recorded: RecordedCalls,
        note: Callable[..., None],
    ) -> None:
        self.note = note
        self.is_doubled = self.is_adaptive = False
        self.names: list[str] = []
        self.sites: tuple[Site, ...] = ()
        self.tokens: TokenPlan | None = None

        def execution(parts: Parts) -> Execution:
            if is_inside(parts.choices.sites):
                return _DryInnerSites(parts, recorded, note)
            if parts.choices.rows is not None:
                return DrySomeTokens(parts, _DryComparison(), recorded, self.plan_tokens)
            return _DryWholeModel(parts, recorded)

        super().__init__(self._without_content(choices), record, progress, execution=execution)

    def call(self, asked: Invocation) -> Any:
        if self.branches.tick < 0 and asked.call.batched and asked.call.batch % 2 == 0:
            self.is_doubled = is_doubled(asked.call.latents[0])
        return super().call(asked)

    def choose_anew(self, choices: Choices) -> None:
        super().choose_anew(self._without_content(choices))

    def plan_tokens(self, plan: TokenPlan) -> None:
        """It is known how some tokens are computed."""
        self.tokens = plan

    def note_expected_error(self) -> None:
        """Nothing was measured."""

    def account(self) -> None:
        super().account()
        for branch in self.branches.known:
            if branch.name not in self.names:
                self.names.append(branch.name)
            self.sites = self.sites or (branch.cuts.sites if branch.cuts else ())
        self.note()

    def _without_content(self, choices: Choices) -> Choices:
        """The same choices, but for all that reads what tensors hold."""

        def scheduler() -> CacheScheduler:
            made = choices.scheduler()
            self.is_adaptive |= made.adaptive
            return _Computing(made, self.note) if made.adaptive else made

        return replace(choices, scheduler=scheduler, watch_bound=None, format=Format())


class _Computing(CacheScheduler):
    """Stands for an adaptive cache scheduler: it is shown everything, and computes everything."""

    adaptive = True

    def __init__(self, scheduler: CacheScheduler, note: Callable[[], None]) -> None:
        self._scheduler = scheduler
        self.compares = scheduler.compares
        self._note = note

    def decide(self, step: Step, signal: Sequence[float] | None) -> Decision:
        return Decision.COMPUTE

    def arrived(self, latents: Sequence[Tensor]) -> None:
        self._scheduler.arrived(latents)
        self._note()  # this is what is held if the tick is reused

    def computed(self, latents: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        self._scheduler.computed(latents, outputs)

    def held(self) -> Iterator[Tensor]:
        return self._scheduler.held()


class _DryComparison(Comparison):
    """Keeps tensors of the size that a run would keep; they are never read."""

    def compare(
        self, lane: Lane, index: int, step: Step, store: Store, tensors: Tensors, computed: Streams
    ) -> list[Streams] | None:
        if not lane.scheduler.adaptive:
            return super().compare(lane, index, step, store, tensors, computed)
        asked = lane.scheduler.compares
        kinds = asked or COMPARED  # it may compare at any tick
        self.errors.append((step.tick, step.tick, kinds, torch.empty(len(kinds), device="meta")))
        return (
            self.guesses(asked, index, step, store, tensors)
            if asked and store.last_computed(index) is not None
            else None
        )

    def close(self, record: RunRecord) -> None:
        self.errors = []


class _DryWholeModel:
    """Executes verdicts on recorded calls of a whole denoiser."""

    def __init__(self, parts: Parts, recorded: RecordedCalls) -> None:
        self._whole = WholeModel(parts, _DryComparison())
        self._recorded = recorded
        self._decider = parts.decider
        self.tensors, self.close = self._whole.tensors, self._whole.close

    def run(self, asked: Invocation, step: Step, branch: Branch, lanes: int) -> Carried:
        yield from ()  # it needs nothing
        found = self._recorded.whole(self._whole.name, asked)
        again = replace(asked, forward=found.again, call=found.call)
        self._all_arrive(again.call, step, branch, lanes)
        carried_out(self._whole.run(again, step, branch, lanes), found.again)
        return found.blank()

    def _all_arrive(self, call: Call, step: Step, branch: Branch, lanes: int) -> None:
        """Tells all samples before one is computed: a tick that reuses them all holds what each of them keeps of it."""
        store = branch.store(MODEL, lanes)
        if lanes == 1 or store.layout is None or branch is not self._decider.leader:
            return
        for lane in range(lanes):
            seen = store.learned.latents(lane_of(call.tensors, lane, lanes, call.batch))
            self._decider.arrived(branch, lane, seen)


class _DryInnerSites:
    """Executes verdicts at sites inside a denoiser, on recorded calls."""

    def __init__(self, parts: Parts, recorded: RecordedCalls, note: Callable[..., None]) -> None:
        self._sites = InnerSites(parts)
        self._parts = parts
        self._decider = parts.decider
        self._recorded = recorded
        self._note = note
        self.tensors, self.close = self._sites.tensors, self._sites.close

    def run(self, asked: Invocation, step: Step, branch: Branch, lanes: int) -> Carried:
        yield from ()  # it needs nothing
        sites, decider = self._sites, self._decider
        found = self._recorded.inside(self._parts, branch, asked)
        assert found.cuts is not None
        if branch.cuts is None:
            self._note(found.kept)
        branch.cuts, done = found.cuts, list[Done]()
        branch.sources = Layout(found.call, found.output, basis="residual").sources()
        decided = decider.site_verdicts(step, branch, found.cuts.sites, lambda lane: [])
        for site, (at, verdicts) in zip(found.cuts.sites, decided, strict=True):
            done.append(Done(at, verdicts, site.share))
            if len(done) == 1:
                decider.arrived(branch, 0, [*found.seen])
            kept = found.sites.get(site.name)
            if verdicts[0].decision.computes and kept is not None:
                store = branch.store(site.name)
                outputs = store_site(self._parts, store, at, kept.first, kept.output, site.continues)
                decider.computed(branch, 0, at, [*found.seen], outputs)
        branch.changed = False
        sites.write_down(found.call, step, branch, done)
        return found.blank()
