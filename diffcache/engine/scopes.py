"""Scopes: what is between the start and the end of a pipeline call, or of a hand-written loop (`LoopScope`).

A context-local variable holds the innermost scope, so threads and nested calls do not see each other's.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, TypeVar

from torch import nn

from diffcache.config import CacheConfig
from diffcache.engine.engine import Engine
from diffcache.engine.execution import Invocation
from diffcache.engine.runs import MakeEngine, Run, Served, served_by_identity
from diffcache.host.call import Call
from diffcache.host.compiled import uncompiled
from diffcache.host.components import has_autoencoder
from diffcache.host.guidance import guidance_scale_during, kept_scales_of
from diffcache.host.network_facts import NetworkFacts, facts_of_networks
from diffcache.noise_schedulers.fresh_noise import adds_fresh_noise
from diffcache.noise_schedulers.influence import Influence
from diffcache.noise_schedulers.levels import levels_of
from diffcache.noise_schedulers.quirks import (
    asked_noise_option,
    index_in_list,
    noise_option,
    sigmas_of,
    without_noise,
)
from diffcache.noise_schedulers.respacing import respace
from diffcache.noise_schedulers.step_calls import StepCall
from diffcache.noise_schedulers.timetable import Timetable, timetable_of
from diffcache.reports.fresh_noise import FreshNoise
from diffcache.reports.records import RunRecord
from diffcache.schedulers.guidance import UNTOLD, Guidance

Forward = Callable[..., Any]

REPLACED = (
    "a callback has replaced the latents before step {tick}: nothing is reused there, or corrected later"
)

PART_OF_LOOP = 3
"""Latents that callbacks replace at so many steps in a row are replaced at all of them."""

_scopes: ContextVar[tuple["Scope | None", ...]] = ContextVar("diffcache_scopes", default=())
"""Outermost first. None hides those before it, and so does a pipeline's scope."""

ScopeT = TypeVar("ScopeT", bound="Scope | None")


def scope_of(module: nn.Module) -> "Scope | None":
    """The innermost scope that serves a denoiser, if none that hides it lies between."""
    for scope in reversed(_scopes.get()):
        if scope is None or id(module) in scope.served or id(uncompiled(module)) in scope.served:
            return scope
        if scope.hides:
            return None
    return None


def innermost() -> "Scope | None":
    """The innermost scope, whatever it serves."""
    return _scopes.get()[-1] if _scopes.get() else None


@contextmanager
def entered(scope: ScopeT) -> Iterator[ScopeT]:
    """Makes `scope` the innermost one; None hides those around it."""
    _scopes.set((*_scopes.get(), scope))
    try:
        yield scope
    finally:
        try:
            if scope is not None:
                scope.close()
        finally:
            _scopes.set(_without(scope))


def bring_to_front(scope: "Scope") -> None:
    """Makes a scope the innermost one: of loops that take turns in one thread, this one goes on.

    It may have been entered in another context: `asyncio.wait_for` steps a generator in a new one each time. Scopes that are over, and were left in
    another context, are dropped.
    """
    others = (one for one in _without(scope) if one is None or one.served)
    _scopes.set((*others, scope))


def _without(scope: "Scope | None") -> tuple["Scope | None", ...]:
    """The scopes but for the innermost occurrence of this one: generators may leave theirs in any order."""
    scopes = list(_scopes.get())
    for i in reversed(range(len(scopes))):
        if scopes[i] is scope:
            del scopes[i]
            break
    return tuple(scopes)


class Scope:
    """Serves the calls of some denoisers; its runs are closed, whatever happens, when it is left.

    Args:
        config: the method; None where no denoiser is served.
        denoisers: those it serves, by their name in the report, compiled or not.
        facts: of the denoisers, under the same names; None: they are found.
        make_engine: what makes an engine; a plan makes engines that do not compute.

    Attributes:
        served: the denoisers by identity. A module that `torch.compile` has wrapped around one is served as that one.
        context: the name that the pipeline gives to the guidance pass that is called now.
        run: the loop that is going on; None between loops.
        records: of all its runs.
        notes: for the record of each run.
        guidance: of the call.
        decodes: see `RunFacts`.
        hides: scopes around this one do not see the calls inside it.
    """

    hides = True

    def __init__(
        self,
        config: CacheConfig | None,
        denoisers: Mapping[str, nn.Module],
        *,
        facts: Mapping[str, NetworkFacts] | None = None,
        make_engine: MakeEngine = Engine,
    ) -> None:
        self.config = config
        self.served = served_by_identity(denoisers, facts or facts_of_networks(denoisers))
        self.make_engine = make_engine
        self.context: str | None = None
        self.influence: Influence | None = None
        self.fresh_noise: FreshNoise | None = None
        self.run: Run | None = None
        self.records: list[RunRecord] = []
        self.notes: Sequence[str] = ()
        self.guidance = UNTOLD
        self.decodes = False

    def call(self, module: nn.Module, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A denoiser has been called inside this scope.

        Raises:
            ScheduleError: the method replays a schedule that does not fit the run that begins here.
        """
        served = self.served.get(id(module)) or self.served[id(uncompiled(module))]
        call = Call(served.signature, args, kwargs)
        engine = self.engine_for(served, call)
        if engine is None:
            return forward(*args, **kwargs)
        compiled = served.facts.holds_compiled or module is not served.module
        return engine.call(Invocation(served.module, forward, call, self.context, compiled, served.facts))

    def engine_for(self, served: Served, call: Call) -> Engine | None:
        """The engine of the run that a call belongs to; None where nothing is cached."""
        run = self.run_of(call)
        if run is None or self.config is None:
            return None
        run.progress.called = True
        return run.engines.get(id(served.module)) or run.engine(served, self.config, call)

    def run_of(self, call: Call) -> Run | None:
        """The run that a call belongs to, which may begin here; None where nothing says where the loop stands."""
        raise NotImplementedError

    def observes(self, noise_scheduler: object) -> bool:
        """Whether it is to be told of this noise scheduler's steps."""
        return False

    def timesteps_set(self, noise_scheduler: object) -> None:
        """A noise scheduler's timesteps have been set."""

    def stepping(
        self, noise_scheduler: object, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> StepCall | None:
        """A noise scheduler is about to step with these arguments. Returns the call that is to be made instead; None: this one."""
        run = self.run_over(noise_scheduler)
        return None if run is None else run.stepping(noise_scheduler, args, kwargs)

    def stepped(
        self, noise_scheduler: object, timestep: object, options: Mapping[str, Any], result: Any
    ) -> None:
        """A noise scheduler has stepped, was given these options, and has returned this."""
        option = noise_option(noise_scheduler, options)
        if option is not None:
            self._noise_was_added(_noise_by(noise_scheduler, option))
        run = self.run_over(noise_scheduler)
        if run is not None:
            run.stepped(result)

    def run_over(self, noise_scheduler: object) -> Run | None:
        """The run that goes over this noise scheduler's timesteps."""
        return self.run

    @contextmanager
    def named(self, context: str) -> Iterator[None]:
        """Between these, the pipeline says, all calls belong to the guidance pass `context`."""
        outer, self.context = self.context, context
        try:
            yield
        finally:
            self.context = outer

    def close(self) -> None:
        """Ends the run; a closed scope serves nothing."""
        try:
            self.end_run()
        finally:
            self.served = {}

    def end_run(self) -> None:
        """Ends the run, if one is going on."""
        if self.run is not None:
            run, self.run = self.run, None
            run.close()

    def begin_run(self, timetable: Timetable, *, hand_written: bool) -> Run:
        """Another loop begins."""
        self.end_run()
        self.run = Run(
            timetable,
            self.make_engine,
            hand_written=hand_written,
            guidance=self.guidance,
            decodes=self.decodes,
            notes=self.notes,
        )
        self.run.record.fresh_noise = self.fresh_noise
        self.records.append(self.run.record)
        return self.run

    def _look_at(self, noise_scheduler: Any) -> None:
        """A loop is about to begin over this noise scheduler's timesteps; None where it is unknown."""
        if noise_scheduler is None or self.config is None:
            return
        if self.config.hindsight:
            self.influence = Influence(noise_scheduler, levels_of(noise_scheduler))
            noisy = self.influence.adds_noise
        else:
            noisy = adds_fresh_noise(noise_scheduler)
        name = type(noise_scheduler).__name__
        self.fresh_noise = FreshNoise(name, without_noise(noise_scheduler)) if noisy else None

    def _noise_was_added(self, noise: FreshNoise) -> None:
        """A step has added noise because of one of its options, which the call may not have asked for."""
        is_new = self.run is not None and self.run.record.fresh_noise is None
        if self.influence is not None and (is_new or self.influence.obstacle is None):
            self.influence.obstacle = noise.obstacle
        if self.run is not None and is_new:
            self.run.record.fresh_noise = noise


class PipelineScope(Scope):
    """One call of a pipeline.

    Args:
        config, denoisers, facts, make_engine: as for `Scope`.
        pipeline: asked for its number of timesteps.
        noise_schedulers: those whose steps are observed.
        call: the arguments of the call by name, as far as they are given.
        notes, guidance: see `Scope`.
    """

    def __init__(
        self,
        config: CacheConfig | None,
        denoisers: Mapping[str, nn.Module],
        pipeline: Any,
        noise_schedulers: Sequence[Any],
        *,
        call: Mapping[str, Any] | None = None,
        notes: Sequence[str] = (),
        guidance: Guidance = UNTOLD,
        facts: Mapping[str, NetworkFacts] | None = None,
        make_engine: MakeEngine = Engine,
    ) -> None:
        super().__init__(config, denoisers, facts=facts, make_engine=make_engine)
        self.notes, self.guidance, self.decodes = notes, guidance, has_autoencoder(pipeline)
        self.pipeline, self._arguments = pipeline, call or {}
        self.noise_schedulers = list(noise_schedulers)
        self.active = self.noise_schedulers[0] if noise_schedulers else None
        self._knows_its_loop = not noise_schedulers
        self._last_index: int | None = None
        self._scales_seen: dict[str, float] = {}
        # The newest tick before which callbacks have replaced the latents, and at how many in a row.
        self._replaced, self._in_a_row = -1, 0

    def observes(self, noise_scheduler: object) -> bool:
        """Those of the pipeline, and no copies that it has made of them."""
        return any(noise_scheduler is known for known in self.noise_schedulers)

    def run_over(self, noise_scheduler: object) -> Run | None:
        """Not over those of a second one, as pipelines of video with sound have it."""
        return self.run if noise_scheduler is self.active else None

    def timesteps_set(self, noise_scheduler: object) -> None:
        """Another loop begins: what the one before it stored is of no use to it.

        Raises:
            ScheduleError: the method has other noise levels for the run, and this noise scheduler cannot take them.
        """
        self.active, self._knows_its_loop = noise_scheduler, True
        nominal = sigmas_of(noise_scheduler) if self.config is not None else None
        levels = self.config.respaced(nominal) if self.config is not None and nominal is not None else None
        if levels is not None:
            respace(noise_scheduler, levels)
        self._look_at(noise_scheduler)
        if self.run is not None and (self.run.tick or self.run.progress.called):
            self.end_run()

    def stepped(
        self, noise_scheduler: object, timestep: object, options: Mapping[str, Any], result: Any
    ) -> None:
        """The tick is over."""
        super().stepped(noise_scheduler, timestep, options, result)
        self._knows_its_loop = True
        if self.run is None:
            return
        self.run.progress.unsure = False
        if noise_scheduler is self.active and self.run.progress.called:
            index = index_in_list([timestep], noise_scheduler)
            if index is not None:
                self.run.timetable.begins_at(index - self.run.tick)
                self._last_index = index
        self.run.end_tick()

    def latents_replaced(self) -> None:
        """A callback has replaced the latents, or written to them: what was stored of the old ones is of no use.

        Callbacks that do so at `PART_OF_LOOP` steps in a row are taken for a part of the loop, as the blending of an inpainting pipeline is.
        """
        if self.run is None or self.run.progress.over:
            return
        tick, before = self.run.tick, self._replaced
        if before == tick:
            return
        self._replaced, self._in_a_row = tick, self._in_a_row + 1 if before == tick - 1 else 1
        if self._in_a_row < PART_OF_LOOP:
            self.run.forget(REPLACED.format(tick=tick))

    def run_of(self, call: Call) -> Run:
        """Most pipelines hand the denoiser their timestep as it is, a view into the noise scheduler's list."""
        run = self.run if self.run is not None and not self.run.progress.over else self._begin()
        if not run.progress.called:
            self._look_at_guidance(run)
        index = index_in_list(call.tensors.values(), self.active)
        if index is None:
            return run
        if self._last_index is not None and not run.progress.called:
            if index < self._last_index:  # the timesteps begin anew: another loop
                run = self._begin()
            elif index == self._last_index:
                run.progress.lost = True
        if not run.progress.called:
            run.progress.timetable.begins_at(index - run.progress.tick)
        return run

    def _look_at(self, noise_scheduler: Any) -> None:
        super()._look_at(noise_scheduler)
        option = asked_noise_option(noise_scheduler, self._arguments)
        if option is not None:
            self.fresh_noise = _noise_by(noise_scheduler, option)
            if self.influence is not None:
                self.influence.obstacle = self.fresh_noise.obstacle

    def close(self) -> None:
        super().close()
        self.pipeline, self.active, self.noise_schedulers = None, None, []

    def _look_at_guidance(self, run: Run) -> None:
        """What hindsight corrects later presumes that guidance weighs outputs as it did."""
        if self.influence is None:
            return
        guidance = kept_scales_of(self.pipeline)
        if guidance != self._scales_seen:
            run.timetable.guidance_changes(run.tick)
        self._scales_seen = guidance

    def _begin(self) -> Run:
        self._last_index, self._replaced = None, -1
        if self.guidance.scale is None:
            self.guidance = replace(self.guidance, scale=guidance_scale_during(self.pipeline))
        ticks = getattr(self.pipeline, "num_timesteps", None)
        end = self._arguments.get("denoising_end")
        run = self.begin_run(timetable_of(self.active, ticks, self.influence, end), hand_written=False)
        run.progress.unsure = not self._knows_its_loop
        return run


def _noise_by(noise_scheduler: Any, option: str) -> FreshNoise:
    """What a report says where an option of its steps makes a noise scheduler add noise."""
    return FreshNoise(f"{type(noise_scheduler).__name__} with {option} above 0", f"{option}=0")
