"""What a server has done, in numbers; and the same as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from diffcache.schedulers.errors import DiffcacheError, from_extra
from diffcache.server.joint import Together
from diffcache.server.request import Request, Usage

NEEDS_CLIENT = f"metrics() needs prometheus_client: {from_extra('serve')}, or read stats()."


@dataclass(frozen=True)
class RequestStats:
    """One request that is open.

    Attributes:
        step, num_steps: its last step, and how many it has; -1 before the first.
        calls: denoiser calls.
        computed: how many of them were computed, parts of a call as fractions.
        cached_bytes, host_bytes: what it holds on the device and in host memory.
        evictions: how often its cache was made smaller, by what was done.
    """

    step: int
    num_steps: int
    calls: int
    computed: float
    cached_bytes: int
    host_bytes: int
    evictions: Mapping[str, int]

    @property
    def hit_rate(self) -> float:
        """The share of its calls that was reused."""
        return 1 - self.computed / self.calls if self.calls else 0.0

    @classmethod
    def of(cls, request: Request) -> RequestStats:
        usage = request.usage
        return cls(
            request.step,
            request.num_steps,
            usage.calls,
            usage.computed,
            request.cached_bytes,
            request.host_bytes,
            dict(usage.evictions),
        )


@dataclass
class Totals:
    """Of all requests that a server has had.

    Attributes:
        ended: how many requests have ended, by how ("finished", "aborted", "expired", "closed", or "lost" where nobody kept it).
        batches: denoiser calls of all requests together.
        failed: how many of these raised an error.
        rows, rows_computed: rows of these calls, and how many the denoiser was given. One that it was given twice, as in a first call
            that also finds out how tokens are left out, counts twice.
        calls, computed: as for one request, of those that have ended.
        evictions: as for one request, of those that have ended.
        seconds: in denoiser calls; on a GPU the time until they are launched.
        forward_seconds: how much of that was in the denoiser's own forward.
    """

    ended: dict[str, int] = field(default_factory=dict)
    batches: int = 0
    failed: int = 0
    rows: int = 0
    rows_computed: int = 0
    calls: int = 0
    computed: float = 0.0
    evictions: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    forward_seconds: float = 0.0

    def add(self, together: Together, seconds: float, *, failed: bool) -> None:
        """A denoiser call is over."""
        self.batches += 1
        self.failed += failed
        self.rows += together.call.form.total
        self.rows_computed += together.call.spent.rows
        self.seconds += seconds
        self.forward_seconds += together.call.spent.seconds

    def end(self, state: str, usage: Usage) -> None:
        """A request has ended."""
        self.ended[state] = self.ended.get(state, 0) + 1
        self.calls += usage.calls
        self.computed += usage.computed
        for kind, times in usage.evictions.items():
            self.evictions[kind] = self.evictions.get(kind, 0) + times


@dataclass(frozen=True)
class ServerStats:
    """A server now.

    Attributes:
        requests: those that are open, by name.
        ended, batches, failed, rows, rows_computed: as in `Totals`.
        calls, computed, evictions: of all requests, open and ended.
        own_seconds: time in denoiser calls that was not spent in the denoiser's forward.
        seconds: time in denoiser calls.
    """

    requests: Mapping[str, RequestStats]
    ended: Mapping[str, int]
    batches: int
    failed: int
    rows: int
    rows_computed: int
    calls: int
    computed: float
    evictions: Mapping[str, int]
    own_seconds: float
    seconds: float

    @property
    def hit_rate(self) -> float:
        """The share of all calls that was reused."""
        return 1 - self.computed / self.calls if self.calls else 0.0

    @property
    def cached_bytes(self) -> int:
        """What all requests hold on the device."""
        return sum(request.cached_bytes for request in self.requests.values())

    @property
    def host_bytes(self) -> int:
        """What all requests hold in host memory."""
        return sum(request.host_bytes for request in self.requests.values())


def stats_of(requests: Mapping[str, Request], totals: Totals) -> ServerStats:
    """The numbers of a server with these open requests."""
    now = {name: RequestStats.of(request) for name, request in requests.items()}
    evictions = dict(totals.evictions)
    for one in now.values():
        for kind, times in one.evictions.items():
            evictions[kind] = evictions.get(kind, 0) + times
    return ServerStats(
        now,
        dict(totals.ended),
        totals.batches,
        totals.failed,
        totals.rows,
        totals.rows_computed,
        totals.calls + sum(one.calls for one in now.values()),
        totals.computed + sum(one.computed for one in now.values()),
        evictions,
        totals.seconds - totals.forward_seconds,
        totals.seconds,
    )


class Collector:
    """Gives a server's numbers to a Prometheus registry: `registry.register(server.collector())`.

    Args:
        stats: of the server.
    """

    def __init__(self, stats: Callable[[], ServerStats]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Any]:
        """The metric families, read when they are scraped."""
        core, stats = _client("core"), self._stats()
        for name, text, value in (
            ("batches", "denoiser calls of all requests together", stats.batches),
            ("failed_batches", "denoiser calls that raised an error", stats.failed),
            ("rows", "rows of denoiser calls", stats.rows),
            ("computed_rows", "rows that the denoiser was given", stats.rows_computed),
            ("calls", "denoiser calls of single requests", stats.calls),
            ("computed_calls", "calls that were computed, parts as fractions", stats.computed),
            ("own_seconds", "time in denoiser calls outside the denoiser's forward", stats.own_seconds),
        ):
            yield core.CounterMetricFamily(f"diffcache_{name}", text, value=value)
        for name, text, counts, label in (
            ("requests_ended", "requests that have ended", stats.ended, "state"),
            ("evictions", "how often a cache was made smaller", stats.evictions, "kind"),
        ):
            family = core.CounterMetricFamily(f"diffcache_{name}", text, labels=[label])
            for key, count in sorted(counts.items()):
                family.add_metric([key], count)
            yield family
        for name, text, value in (
            ("open_requests", "requests that are open", len(stats.requests)),
            ("cached_bytes", "bytes that all requests hold on the device", stats.cached_bytes),
            ("host_bytes", "bytes that all requests hold in host memory", stats.host_bytes),
            ("hit_rate", "share of all calls that was reused", stats.hit_rate),
        ):
            yield core.GaugeMetricFamily(f"diffcache_{name}", text, value=value)
        for name, text in (
            ("hit_rate", "share of the request's calls that was reused"),
            ("cached_bytes", "bytes that the request holds on the device"),
            ("host_bytes", "bytes that the request holds in host memory"),
            ("calls", "denoiser calls of the request"),
        ):
            family = core.GaugeMetricFamily(f"diffcache_request_{name}", text, labels=["request"])
            for key, request in stats.requests.items():
                family.add_metric([key], getattr(request, name))
            yield family


def prometheus_text(collector: Collector) -> str:
    """The numbers in Prometheus' text format.

    Raises:
        DiffcacheError: prometheus_client is not installed.
    """
    client = _client("")
    registry = client.CollectorRegistry(auto_describe=False)
    registry.register(collector)
    text: str = client.generate_latest(registry).decode()
    return text


def _client(part: str) -> Any:
    try:
        import prometheus_client
        import prometheus_client.core
    except ImportError as error:
        raise DiffcacheError(NEEDS_CLIENT) from error
    return getattr(prometheus_client, part) if part else prometheus_client
