"""A rehearsal: the loop goes through a run with the engine's own decisions, and nothing is computed or stored.

The first call of each form is real, and shows the denoiser's sites; all others return zeros. What is stored lies on the
meta device. So the decisions are those of the run, and so is what it holds, for a method that doesn't look at content.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from diffcache.config import CacheConfig, RunFacts
from diffcache.discovery.sites import Site
from diffcache.engine.branches import Branch
from diffcache.engine.engine import Engine
from diffcache.engine.inner_sites import Inside
from diffcache.engine.watch import COMPARED
from diffcache.engine.whole_model import Here, Whole
from diffcache.host.call import Call
from diffcache.host.parallel import Agreement
from diffcache.noise_schedulers.timetable import Turn
from diffcache.planning.recorded_calls import Takes
from diffcache.reports.records import Done, RunRecord
from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.steps import Decision, Step
from diffcache.store.formats import Format
from diffcache.store.streams import Layout

Forward = Callable[..., Any]


class Rehearsed:
    """A method without what depends on content: an adaptive one computes everything, and no watch interferes."""

    watch = None

    def __init__(self, config: CacheConfig, note: Callable[[], None]) -> None:
        self._config = config
        self._note = note

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)

    def scheduler(self, run: RunFacts) -> CacheScheduler:
        scheduler = self._config.scheduler(run)
        return _Computing(scheduler, self._note) if scheduler.adaptive else scheduler

    def format(self, run: RunFacts) -> Format:
        return Format()


class RehearsalEngine(Engine):
    """One denoiser in one rehearsal. Everything it holds lies on the meta device, but for the arguments of calls.

    Args:
        takes: of real calls.
        note: called after each call, while everything is held that will be held after it.
        name, config, facts, record, separable: as for `Engine`.
        agreement: left alone: other processes may not be rehearsing.

    Attributes:
        doubled: its calls hold two equal halves: both guidance passes.
        names: of its guidance passes, in order.
        sites: places inside that are cached.
        adaptive: decisions depend on content.
    """

    def __init__(
        self,
        takes: Takes,
        note: Callable[[], None],
        name: str,
        config: CacheConfig,
        facts: RunFacts,
        record: RunRecord,
        *,
        separable: bool,
        agreement: Agreement | None,
    ) -> None:
        rehearsed = cast(CacheConfig, Rehearsed(config, note))
        super().__init__(name, rehearsed, facts, record, separable=separable)
        self.note = note
        self.doubled = self.adaptive = False
        self.names: list[str] = []
        self.sites: tuple[Site, ...] = ()
        self.whole = _Whole(takes, name, rehearsed, self.planner, record)
        if self.inside is not None:
            self.inside = _Inside(takes, name, self.inside.places, rehearsed, self.planner, record)

    def call(self, module: nn.Module, forward: Forward, call: Call, turn: Turn) -> Any:
        if self.branches.tick < 0 and call.batched and call.batch % 2 == 0:
            self.doubled = torch.equal(*call.latents[0].chunk(2))
        return super().call(module, forward, call, turn)

    def _call(self, module: nn.Module, forward: Forward, call: Call, turn: Turn) -> Any:
        output = super()._call(module, forward, call, turn)
        for branch in self.branches.known:
            self.names += [branch.name] if branch.name not in self.names else []
            self.sites = self.sites or (branch.anatomy.sites if branch.anatomy else ())
        self.adaptive |= any(lane.scheduler.adaptive for lane in self.planner.lanes)
        self.note()
        return output


class _Computing(CacheScheduler):
    """An adaptive cache scheduler that is shown everything, and not asked."""

    adaptive = True

    def __init__(self, scheduler: CacheScheduler, note: Callable[[], None]) -> None:
        self._scheduler = scheduler
        self.compares = scheduler.compares
        self._note = note

    def decide(self, step: Step, signal: Sequence[float] | None) -> Decision:
        return Decision.COMPUTE

    def arrived(self, latents: Sequence[Tensor]) -> None:
        self._scheduler.arrived(latents)
        self._note()  # a reused tick would leave it so

    def computed(self, latents: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        self._scheduler.computed(latents, outputs)

    def held(self) -> Iterator[Tensor]:
        return self._scheduler.held()


class _Whole(Whole):
    def __init__(self, takes: Takes, *args: Any) -> None:
        super().__init__(*args)
        self.takes = takes

    def run(self, forward: Forward, call: Call, turn: Turn, branch: Branch) -> Any:
        take = self.takes.whole(self.name, forward, call)
        super().run(take.again, take.call, turn, branch)
        return take.blank()

    def _compare(self, here: Here, *args: Any) -> None:
        scheduler, tick = self.planner.lanes[0].scheduler, here.step.tick
        if scheduler.adaptive:  # it may compare at any tick
            kinds = scheduler.compares or COMPARED
            self.errors.append((tick, tick, kinds, torch.empty(len(kinds), device="meta")))
        else:
            super()._compare(here, *args)

    def close(self) -> None:
        self.errors = []


class _Inside(Inside):
    def __init__(self, takes: Takes, *args: Any) -> None:
        super().__init__(*args)
        self.takes = takes

    def run(self, module: nn.Module, forward: Forward, call: Call, turn: Turn, branch: Branch) -> Any:
        take = self.takes.inside(self.name, branch.name, module, forward, call, self.places, self.tap)
        assert take.anatomy is not None
        branch.anatomy, done = take.anatomy, list[Done]()
        branch.sources = Layout(take.call, take.output, residual=True).sources()
        for site in take.anatomy.sites:
            step = turn.step(branch.name, site.name, site.kind)
            verdicts = self.planner.verdicts(step, branch, lambda lane: [])
            done.append(Done(step, verdicts, site.share))
            if len(done) == 1:
                self.planner.arrived(branch, 0, [*take.seen])
            if verdicts[0].decision.computes and site.name in take.parts:
                outputs = self.keep(branch, step, *take.parts[site.name], site.continues)
                self.planner.computed(branch, 0, step, [*take.seen], outputs)
        branch.changed = False
        self._write_down(call, turn, branch, done)
        return take.blank()
