"""A request: one denoising run of a server, with a cache of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from typing_extensions import Self

from diffcache.engine.engine import Engine
from diffcache.engine.execution import Carried, Computation, Invocation
from diffcache.engine.loop_scope import LoopScope
from diffcache.engine.served import Served
from diffcache.reports.run_report import NO_METHOD, RunReport
from diffcache.schedulers.errors import DiffcacheError
from diffcache.store.formats import DTYPES, format_of, narrower_than
from diffcache.store.placement import DeviceMemory, HostMemory

Guidance = Literal["batched", "apart"]

State = Literal["open", "finished", "aborted", "expired", "closed"]


@dataclass
class Usage:
    """What one request has used.

    Attributes:
        calls: denoiser calls.
        computed: how many of them were computed, parts of a call as fractions.
        evictions: how often its cache was made smaller for the bound, by what was done.
        is_counted: the request has ended, and its server has counted this.
    """

    calls: int = 0
    computed: float = 0.0
    evictions: dict[str, int] = field(default_factory=dict)
    is_counted: bool = False

    @property
    def saved(self) -> float:
        """Calls that were reused."""
        return self.calls - self.computed


class Request:
    """One denoising run. Made by `Server.request`; it is over when `finish` or `abort` is called, or its `with` block is left.

    Args:
        name: for messages and metrics.
        scope: of its loop.
        guidance: how its guidance passes come.
        clock: tells the time.
        ended: is told when it is over.
        locked: the server's lock: a request does not end while a batch takes it.

    Attributes:
        state: "open", or how it ended.
        busy: it is in a batch now.
        in_call: a denoiser call of it goes on: nobody else may touch what it stores.
        used_at: when it was last used, in seconds of the server's clock.
        step: its newest one; -1 before the first.
        usage: what it has used.
    """

    def __init__(
        self,
        name: str,
        scope: LoopScope,
        guidance: Guidance | None,
        clock: Callable[[], float],
        ended: Callable[[Request], None],
        locked: Any,
    ) -> None:
        self.name = name
        self.guidance = guidance
        self.state: State = "open"
        self.busy = self.in_call = False
        self.usage = Usage()
        self.used_at = clock()
        self.step = -1
        self._scope = scope
        self._clock, self._ended, self._locked = clock, ended, locked
        self._passes_left = 0

    @property
    def num_steps(self) -> int:
        return self._scope.num_steps

    @property
    def passes(self) -> int:
        """Denoiser calls at each step."""
        return 2 if self.guidance == "apart" else 1

    @property
    def width(self) -> int:
        """Guidance passes in one call."""
        return 2 if self.guidance == "batched" else 1

    @property
    def cached_bytes(self) -> int:
        """Bytes that it holds on the device now."""
        return self._held()[0]

    @property
    def host_bytes(self) -> int:
        """Bytes that it holds in host memory now."""
        return self._held()[1]

    def report(self) -> RunReport:
        """What was computed and reused so far."""
        config = self._scope.config
        name, options = (NO_METHOD, {}) if config is None else (config.name, config.options())
        return RunReport(name, options, self._scope.records, one_loop=True)

    def finish(self) -> None:
        """It is done: everything that it holds is dropped."""
        self.end("finished")

    def abort(self) -> None:
        """It is not wanted any more: everything that it holds is dropped."""
        self.end("aborted")

    def end(self, state: State) -> None:
        """Drops everything, once."""
        with self._locked:
            if self.busy:
                raise DiffcacheError(f"{self.name} is in a batch now: end it after the batch.")
            if self.state == "open":
                self.state = state
                self._scope.close()
                self._ended(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self.state == "open":
            self.end("finished" if kind is None else "aborted")

    def check(self, step: Any) -> None:
        """Refuses a step that it cannot take now, with DiffcacheError."""
        if self.state != "open":
            raise DiffcacheError(f"{self.name} is over ({self.state}): make another request.")
        if self.busy:
            raise DiffcacheError(
                f"{self.name} is in another batch, or twice in this one: give it one at a time."
            )
        try:
            self._scope.checked(step)
        except DiffcacheError as error:
            raise DiffcacheError(
                f"{self.name} has steps 0 to {self._scope.num_steps - 1}, and this batch says {step!r}."
            ) from error

    def begin(self, step: int) -> None:
        """It is in a batch at this step. A step that comes again is begun anew, with nothing stored."""
        self.busy, self.used_at = True, self._clock()
        if step == self.step and self._passes_left:
            return  # the step's next guidance pass
        if step <= self.step:
            self._scope.end_run()
        self._scope.begin_step(step)
        self.step, self._passes_left = step, self.passes

    def leave(self) -> None:
        """The batch is over."""
        self.busy, self.used_at = False, self._clock()

    def awaits_pass(self) -> bool:
        """Whether a guidance pass of its step is still to come."""
        return self._passes_left > 0

    def carry_out(self, served: Served, asked: Invocation) -> Carried:
        """Its rows of a denoiser call."""
        self._passes_left -= 1
        engine = self._scope.enter_engine(served, asked.call)
        if engine is None:
            output, share = (yield Computation(asked.call.args, asked.call.kwargs)), 1.0
        else:
            first = len(engine.record)
            output = yield from engine.carry_out(asked)
            share = engine.record.share_since(first)
        self.usage.calls += 1
        self.usage.computed += share
        return output

    def fail(self) -> None:
        """A call was broken off: what is stored may be half of it, and is dropped. The step can be tried again."""
        self.in_call = False
        self._scope.end_run()
        self._passes_left = 0

    def forget(self) -> None:
        """Drops what is stored; the next call is computed."""
        for engine in self._engines():
            engine.forget()

    def recode(self, cache_dtype: str | None, *, on_host: bool) -> None:
        """Keeps what is stored, and what will be, in another format."""
        for engine in self._engines():
            memory = HostMemory() if on_host else DeviceMemory()
            engine.recode(format_of(cache_dtype, memory))

    @property
    def cache_dtype(self) -> str | None:
        """What its features are rounded to now; None: as computed."""
        dtypes = {engine.setup.format.dtype for engine in self._engines()}
        return next((name for name, dtype in DTYPES.items() if dtype in dtypes), None)

    def narrower(self) -> str | None:
        """The next format of fewer bits; None where there is none."""
        return next(iter(narrower_than(self.cache_dtype)), None)

    def count_eviction(self, kind: str) -> None:
        """Its cache was made smaller."""
        self.usage.evictions[kind] = self.usage.evictions.get(kind, 0) + 1

    def _engines(self) -> list[Engine]:
        run = self._scope.run
        return [] if run is None else list(run.engines.values())

    def _held(self) -> tuple[int, int]:
        run = self._scope.run
        held = list(run.record.held.values()) if run is not None else []
        return sum(device for device, _ in held), sum(host for _, host in held)
