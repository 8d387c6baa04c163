"""Scopes: what is between the start and the end of a pipeline call, or of a hand-written loop.

A context-local variable holds the innermost scope, so threads and nested calls do not see each other's.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from torch import nn

from diffcache.config import CacheConfig
from diffcache.engine.engine import Engine, Forward
from diffcache.engine.runs import Run
from diffcache.host.call import Call
from diffcache.host.compiled import uncompiled
from diffcache.noise_schedulers.influence import Influence
from diffcache.noise_schedulers.respacing import respace
from diffcache.noise_schedulers.timetable import Timetable, place_in_list, sigmas_of, timetable_of
from diffcache.reports.records import RunRecord
from diffcache.schedulers.errors import DiffcacheError

_scopes: ContextVar[tuple["Scope | None", ...]] = ContextVar("diffcache_scopes", default=())
"""Outermost first. None hides those before it, and so does a pipeline's scope."""

ScopeT = TypeVar("ScopeT", bound="Scope | None")


def scope_of(module: nn.Module) -> "Scope | None":
    """The innermost scope that serves a denoiser, if none that hides it lies between."""
    for scope in reversed(_scopes.get()):
        if scope is None or scope.serves(module):
            return scope
        if scope.hides:
            return None
    return None


def innermost() -> "Scope | None":
    return _scopes.get()[-1] if _scopes.get() else None


@contextmanager
def entered(scope: ScopeT) -> Iterator[ScopeT]:
    """Makes `scope` the innermost one; None hides those around it."""
    _scopes.set((*_scopes.get(), scope))
    try:
        yield scope
    finally:
        if scope is not None:
            scope.close()
        _scopes.set(_without(scope))


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
        denoisers: those it serves, by their name in the report (uncompiled).
    """

    by_order = False
    hides = True
    """Scopes around this one do not see the calls inside it."""
    make_engine: Callable[..., Engine] = Engine

    def __init__(self, config: CacheConfig | None, denoisers: dict[str, nn.Module]) -> None:
        self.config = config
        self.sites = {id(module): name for name, module in denoisers.items()}
        self.experts = Counter(type(module).__name__ for module in denoisers.values())
        self.context: str | None = None
        self.influence: Influence | None = None
        self.run: Run | None = None
        self.last_place: int | None = None
        self.records: list[RunRecord] = []
        self.notes: Sequence[str] = ()

    def serves(self, module: nn.Module) -> bool:
        return id(uncompiled(module)) in self.sites

    def call(self, module: nn.Module, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A denoiser has been called inside this scope.

        Raises:
            ScheduleError: the method replays a schedule that does not fit the run that begins here.
        """
        plain = uncompiled(module)
        call = Call(plain, args, kwargs)
        if self.run is None or self.run.over:
            self._begin()
        self.locate(call)
        assert self.run is not None
        assert self.config is not None
        engine = self.run.engine(
            plain, self.config, self.sites[id(plain)], self.experts[type(plain).__name__], call
        )
        return engine.call(plain, forward, call, self.run.turn(self.context, by_order=self.by_order))

    @contextmanager
    def named(self, context: str) -> Iterator[None]:
        """Between these, the pipeline says, all calls belong to the guidance pass `context`."""
        outer, self.context = self.context, context
        try:
            yield
        finally:
            self.context = outer

    def look_back(self, noise_scheduler: Any) -> None:
        """A loop is about to begin over this noise scheduler's timesteps; None where it is unknown."""
        if noise_scheduler is not None and self.config is not None and self.config.looks_back:
            self.influence = Influence(noise_scheduler, sigmas_of(noise_scheduler))

    def timetable(self) -> Timetable:
        """Of the run that is about to begin."""
        raise NotImplementedError

    def locate(self, call: Call) -> None:
        """Learns what can be learned from a call's arguments about its place in the run."""

    def close(self) -> None:
        """Ends the run; a closed scope serves nothing."""
        self.end_run()
        self.sites = {}

    def end_run(self) -> None:
        if self.run is not None:
            self.run.close()
            self.run = None

    def _begin(self) -> None:
        self.end_run()
        self.last_place = None
        self.run = Run(self.timetable(), self.make_engine)
        self.run.record.notes = list(self.notes)
        self.records.append(self.run.record)


class PipelineScope(Scope):
    """One call of a pipeline.

    Args:
        config: the method.
        denoisers: as for `Scope`.
        pipeline: asked for its number of timesteps.
        noise_schedulers: those whose steps are observed.
    """

    def __init__(
        self,
        config: CacheConfig | None,
        denoisers: dict[str, nn.Module],
        pipeline: Any,
        noise_schedulers: Sequence[Any],
    ) -> None:
        super().__init__(config, denoisers)
        self.pipeline = pipeline
        self.noise_schedulers = list(noise_schedulers)
        self.active = self.noise_schedulers[0] if noise_schedulers else None

    def observes(self, noise_scheduler: object) -> bool:
        return any(noise_scheduler is known for known in self.noise_schedulers)

    def timetable(self) -> Timetable:
        timetable = timetable_of(self.active, getattr(self.pipeline, "num_timesteps", None))
        timetable.influence = self.influence
        return timetable

    def timesteps_set(self, noise_scheduler: object) -> None:
        """Another loop begins: what the one before it stored is of no use to it.

        Raises:
            ScheduleError: the method has other noise levels for the run, and this noise scheduler cannot take them.
        """
        self.active = noise_scheduler
        nominal = sigmas_of(noise_scheduler) if self.config is not None else None
        levels = self.config.respaced(nominal) if self.config is not None and nominal is not None else None
        if levels is not None:
            respace(noise_scheduler, levels)
        self.look_back(noise_scheduler)
        if self.run is not None and (self.run.tick or self.run.called):
            self.end_run()

    def stepped(self, noise_scheduler: object, timestep: object) -> None:
        if self.run is None:
            return
        if noise_scheduler is self.active and self.run.called:
            place = place_in_list(timestep, noise_scheduler)
            if place is not None:
                self.run.timetable.begins_at(place - self.run.tick)
                self.last_place = place
        self.run.end_tick()

    def locate(self, call: Call) -> None:
        """Most pipelines hand the denoiser their timestep as it is, a view into the noise scheduler's list."""
        times = (tensor for path, tensor in call.tensors.items() if not call.is_latent(path))
        place = next((p for p in (place_in_list(time, self.active) for time in times) if p is not None), None)
        if place is None or self.run is None:
            return
        if self.last_place is not None and not self.run.called:
            if place < self.last_place:  # the timesteps begin anew: another loop
                self._begin()
            elif place == self.last_place:
                self.run.lost = True
        if not self.run.called:
            self.run.timetable.begins_at(place - self.run.tick)

    def close(self) -> None:
        super().close()
        self.pipeline, self.active, self.noise_schedulers = None, None, []


class LoopScope(Scope):
    """One hand-written loop (`denoising_run`): each call after `begin_step` is the next branch of that tick."""

    by_order = True
    hides = False

    def __init__(
        self,
        config: CacheConfig | None,
        denoisers: dict[str, nn.Module],
        num_steps: int,
        sigmas: Sequence[float] | None,
        noise_scheduler: Any = None,
    ) -> None:
        super().__init__(config, denoisers)
        self.look_back(noise_scheduler)
        self.num_steps = num_steps
        self.sigmas = None if sigmas is None else [float(sigma) for sigma in sigmas]
        self.step: int | None = None
        self.unplaced = False

    def timetable(self) -> Timetable:
        return Timetable(self.num_steps, self.sigmas, influence=self.influence)

    def begin_step(self, i: int) -> None:
        """Step `i` (0 to num_steps - 1) begins; going back begins another run.

        Raises:
            ValueError: `i` is not a step of this loop.
        """
        if not 0 <= i < self.num_steps:
            raise DiffcacheError(
                f"begin_step({i}): this run has steps 0 to {self.num_steps - 1}; set num_steps."
            )
        if self.run is not None and self.step is not None and i <= self.step:
            self.end_run()
        if self.run is None:
            self._begin()
        assert self.run is not None
        if self in _scopes.get():  # loops that take turns in one thread: this one goes on now
            _scopes.set((*_without(self), self))
        self.step = self.run.tick = i
        self.run.record.observed = True

    def call(self, module: nn.Module, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.step is None:
            self.unplaced = True
            return forward(*args, **kwargs)
        return super().call(module, forward, args, kwargs)

    def close(self) -> None:
        if self.unplaced and not self.records:
            self.records.append(RunRecord())
        super().close()
