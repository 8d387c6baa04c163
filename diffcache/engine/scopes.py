"""Scopes: what is between the start and the end of a pipeline call (`PipelineScope`), or of a hand-written loop (`LoopScope`).

A context-local variable holds the innermost scope, so threads and nested calls do not see each other's.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from torch import nn

from diffcache.config import CacheConfig
from diffcache.engine.engine import Engine
from diffcache.engine.execution import Invocation
from diffcache.engine.runs import MakeEngine, Run
from diffcache.engine.served import Served, served_by_identity
from diffcache.host.call import Call
from diffcache.host.compiled import uncompiled
from diffcache.host.network_facts import NetworkFacts, facts_of_networks
from diffcache.noise_schedulers.fresh_noise import adds_fresh_noise
from diffcache.noise_schedulers.influence import Influence
from diffcache.noise_schedulers.levels import levels_of
from diffcache.noise_schedulers.quirks import (
    noise_option,
    without_noise,
)
from diffcache.noise_schedulers.step_calls import StepCall
from diffcache.noise_schedulers.timetable import Timetable
from diffcache.reports.fresh_noise import FreshNoise
from diffcache.reports.records import RunRecord
from diffcache.schedulers.guidance import UNTOLD

Forward = Callable[..., Any]

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
        influence: of outputs at the loop's timesteps on its result; None where it is unknown, or not needed.
        fresh_noise: that the noise scheduler adds at its steps; None where it adds none, or that is unknown.
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
        engine = self.enter_engine(served, call)
        if engine is None:
            return forward(*args, **kwargs)
        reuses_memory = served.network.holds_compiled or module is not served.module
        return engine.call(
            Invocation(served.module, forward, call, self.context, reuses_memory, served.network)
        )

    def enter_engine(self, served: Served, call: Call) -> Engine | None:
        """The engine that takes a call, which may begin a run; None where nothing is cached."""
        run = self.run_of(call)
        if run is None or self.config is None:
            return None
        run.progress.called = True
        return run.engines.get(id(served.module)) or run.begin_engine(served, self.config, call)

    def run_of(self, call: Call) -> Run | None:
        """The run that a call belongs to, which may begin here; None where nothing says where the loop stands."""
        raise NotImplementedError

    def observes(self, noise_scheduler: object) -> bool:
        """Whether this noise scheduler's steps are to be told to the scope."""
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
            self._noise_was_added(noise_by(noise_scheduler, option))
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
        """Sets `influence` and `fresh_noise` before a loop begins over its timesteps. Each is None where it is unknown, or not needed."""
        if noise_scheduler is None or self.config is None:
            return
        if self.config.needs_influence:
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


def noise_by(noise_scheduler: Any, option: str) -> FreshNoise:
    """What a report says where an option of its steps makes a noise scheduler add noise."""
    return FreshNoise(f"{type(noise_scheduler).__name__} with {option} above 0", f"{option}=0")
