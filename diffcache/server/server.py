"""`serving`: many requests share the calls of one denoiser, each with a cache of its own."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from torch import nn

from diffcache.attach.loop_checks import noise_levels, number_of_steps
from diffcache.attach.requirements import facts_of
from diffcache.attach.swapping import swap_in_all
from diffcache.discovery.site_names import is_inside
from diffcache.engine.choices import Choices
from diffcache.engine.engine import Engine
from diffcache.engine.loop_scope import LoopScope
from diffcache.engine.progress import Progress
from diffcache.engine.scopes import entered
from diffcache.engine.served import served_by_identity
from diffcache.hooks.attachments import Attachment
from diffcache.host.network_facts import facts_of_networks
from diffcache.host.parallel import Agreement
from diffcache.method_config import MethodConfig
from diffcache.reports.records import RunRecord
from diffcache.schedulers.errors import ConfigError, DiffcacheError, TargetError
from diffcache.schedulers.schedule import Schedule
from diffcache.server.batch import BatchScope, Entry, Sharing, check_entries, row_counts
from diffcache.server.eviction import Eviction
from diffcache.server.method_of_request import method_of_request
from diffcache.server.request import Guidance, Request, Usage
from diffcache.server.rows import Splitter
from diffcache.server.stats import Collector, ServerStats, Totals, prometheus_text, stats_of

GUIDANCE = (None, "batched", "apart")
ORDERS = ("passes", "requests")


@dataclass(frozen=True)
class Limits:
    """What a server keeps to.

    Attributes:
        eviction: keeps to the bound on bytes; None: there is none.
        timeout: seconds after which a request that is not used is ended; None: never.
        clock: tells the time, in seconds.
        shared: names of arguments that all requests share; None: their shapes tell.
    """

    eviction: Eviction | None
    timeout: float | None
    clock: Callable[[], float]
    shared: frozenset[str] | None


class Server:
    """Serves the requests of one denoiser; made by `serving`.

    Methods may be called from several threads. A request is in one batch at a time.
    """

    def __init__(self, denoiser: nn.Module, attachment: Attachment, limits: Limits) -> None:
        self._denoiser = denoiser
        self._attachment = attachment
        self._limits = limits
        self._lock = threading.RLock()
        self._open: WeakValueDictionary[str, Request] = WeakValueDictionary()
        self._totals = Totals()
        self._sharing = Sharing(
            served_by_identity({"denoiser": denoiser}, facts_of_networks({"denoiser": denoiser})),
            Splitter(limits.shared),
            self._totals,
            self._make_room,
            self._lock,
        )
        self._made = 0
        self._is_over = False

    def request(
        self,
        num_steps: int,
        *,
        config: MethodConfig | Schedule | str | Path | None = None,
        speedup: float | None = None,
        rows: Any = None,
        noise_scheduler: Any = None,
        sigmas: Any = None,
        guidance: Guidance | None = None,
        name: str | None = None,
        **options: Any,
    ) -> Request:
        """A new request: one denoising run with a cache of its own.

        Args:
            num_steps: model evaluations of its loop.
            config: its method, as for `accelerate`: a name with `options`, a config, a `Schedule`, or a folder of one of these.
                None without `speedup`: nothing is cached.
            speedup: instead of a threshold, as for `accelerate`.
            rows: compute some of the picture's tokens only, as for `accelerate`: a mask, "context" or "region".
            noise_scheduler: that its loop steps with, after `set_timesteps`; it is read here, and not kept.
            sigmas: noise level at each step, where there is no noise scheduler (see `denoising_run`).
            guidance: how its guidance passes come: "batched", its rows twice in each call; "apart", in two calls at each
                step, in the same order; None: one pass.
            name: in messages and metrics; None: a number.
            **options: the method's own.

        Returns:
            The request. `finish` or `abort` it when it is over, or use it as a `with` block. One that nobody keeps is dropped.

        Raises:
            ConfigError, ScheduleError: as `accelerate`, or the steps cannot meet the speed-up.
            TargetError: as `denoising_run`, or the server is over.
        """
        self._check_open()
        num_steps = number_of_steps(num_steps, noise_scheduler, "request()")
        levels = noise_levels(sigmas, num_steps, noise_scheduler)
        if guidance not in GUIDANCE:
            raise ConfigError(f"guidance must be None, 'batched' or 'apart', not {guidance!r}.")
        bounded = self._limits.eviction is not None
        chosen = method_of_request(self._denoiser, config, speedup, rows, options, bounded=bounded)
        if chosen is not None and rows is None:
            # Refuses here what would fail in a batch, and take the caches of all its requests.
            chosen.most_ticks(
                replace(facts_of({"denoiser": self._denoiser}, "denoiser"), num_ticks=num_steps)
            )
        scope = LoopScope(
            chosen, {}, num_steps, levels, noise_scheduler, shows_steps=False, make_engine=_engine
        )
        with self._lock:
            self._expire()
            name = self._free_name() if name is None else name
            if name in self._open:
                raise ConfigError(f"there is an open request called {name!r}: choose another name.")
            if chosen is not None:
                denoisers = {"denoiser": self._denoiser}
                swapped_in = swap_in_all(denoisers, facts_of_networks(denoisers), chosen)
                self._attachment.swapped.update(swapped_in)
            made = Request(name, scope, guidance, self._limits.clock, self._ended, self._lock)
            self._open[name] = made
            weakref.finalize(made, self._lost, made.usage)
        return made

    @contextmanager
    def batch(
        self,
        entries: Sequence[tuple[Request, int]],
        rows_per_request: int | Sequence[int] = 1,
        *,
        order: str = "passes",
    ) -> Iterator[None]:
        """Inside, the rows of a denoiser call belong to these requests at these steps.

        The first call has the first guidance pass of every request; a second one has the requests whose passes come
        apart. These may also come in a second batch at the same step. A step that comes again after its last pass, or an
        earlier one, begins the request anew, with nothing stored.

        Args:
            entries: requests, and the step (from 0) at which each of them is.
            rows_per_request: samples of each, in one guidance pass.
            order: of rows where passes are batched. "passes": the first pass of all requests, then the second pass of those
                that have one, as `torch.cat([latents, latents])` gives. "requests": both passes of the first request,
                then those of the next one.

        Raises:
            ConfigError: the entries are no pairs of a request and a step.
            DiffcacheError: a request is over, in another batch, or has no such step.
            TargetError: the call has other rows than these requests, or cannot be taken apart; the server is over.
        """
        self._check_open()
        check_entries(entries)
        rows = row_counts(rows_per_request, len(entries))
        if order not in ORDERS:
            raise ConfigError(f"order must be 'passes' or 'requests', not {order!r}.")
        with self._lock:
            self._expire()
            taken = self._taken(entries, rows)
        scope = BatchScope(taken, self._sharing, by_request=order == "requests")
        try:
            with entered(scope):
                yield
        finally:
            with self._lock:
                for entry in taken:
                    entry.request.leave()
                    if self._is_over:
                        entry.request.end("closed")

    def stats(self) -> ServerStats:
        """What the server has done so far, in numbers."""
        with self._lock:
            return stats_of(dict(self._open), self._totals)

    def metrics(self) -> str:
        """The same in Prometheus' text format.

        Raises:
            DiffcacheError: prometheus_client is not installed; the message says how.
        """
        return prometheus_text(self.collector())

    def collector(self) -> Collector:
        """For a Prometheus registry of your own: `registry.register(server.collector())`."""
        return Collector(self.stats)

    def close(self) -> None:
        """Ends all requests. `serving` does it when its block is left. One whose call goes on in another thread ends with its batch."""
        with self._lock:
            self._is_over = True
            for request in list(self._open.values()):
                if not request.in_call:
                    request.busy = False
                    request.end("closed")

    def _check_open(self) -> None:
        if self._is_over:
            raise TargetError("this server is over: use it inside its with block.")

    def _free_name(self) -> str:
        """A number that no open request is called by; it holds the lock."""
        self._made += 1
        while f"request {self._made}" in self._open:
            self._made += 1
        return f"request {self._made}"

    def _taken(self, entries: Sequence[tuple[Request, int]], rows: Sequence[int]) -> list[Entry]:
        """Marks requests as in this batch: all of them or none."""
        taken: list[Entry] = []
        try:
            for (request, step), count in zip(entries, rows, strict=True):
                if self._open.get(request.name) is not request and request.state == "open":
                    raise DiffcacheError(f"{request.name} belongs to another server.")
                request.check(step)
                request.begin(step)
                taken.append(Entry(request, count))
        except BaseException:
            for entry in taken:
                entry.request.leave()
            raise
        return taken

    def _make_room(self, newest: Request) -> None:
        """A call of a request has stored something."""
        if self._limits.eviction is not None:
            with self._lock:
                holding = [request for request in self._open.values() if request.cached_bytes]
                self._limits.eviction.keep(holding, newest)

    def _expire(self) -> None:
        if self._limits.timeout is None:
            return
        now = self._limits.clock()
        for request in list(self._open.values()):
            if not request.busy and now - request.used_at > self._limits.timeout:
                request.end("expired")

    def _ended(self, request: Request) -> None:
        """A request has ended; it holds the lock."""
        self._open.pop(request.name, None)
        request.usage.is_counted = True
        self._totals.end(request.state, request.usage)

    def _lost(self, usage: Usage) -> None:
        """A request is gone: nobody has kept it, if it had not ended."""
        if not usage.is_counted:
            with self._lock:
                self._totals.end("lost", usage)


def _engine(choices: Choices, record: RunRecord, progress: Progress, agreement: Agreement | None) -> Engine:
    """A request's engine. Processes may differ in what the bound made them drop, so whole denoisers always vote."""
    if agreement is not None:
        agreement.always = not is_inside(choices.sites)
    return Engine(choices, record, progress, agreement)
