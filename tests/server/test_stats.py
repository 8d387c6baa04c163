"""What a server tells of itself."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
from support.shared_loop import Client, Job, Waves, step_all

from diffcache import serving
from diffcache.schedulers.errors import DiffcacheError


def values(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_prometheus_metrics_tell_what_stats_tell() -> None:
    pytest.importorskip("prometheus_client")
    denoiser = Waves()
    with serving(denoiser) as server:
        done = Client.of(server, Job("uniform", (("interval", 2),), steps=2))
        open_ = Client.of(
            server, Job("uniform", (("interval", 2), ("tail_steps", 0)), steps=4, guidance="apart")
        )
        for clients in ([done, open_], [done, open_], [open_]):
            step_all(server, denoiser, clients)
        done.request.finish()
        stats, found = server.stats(), values(server.metrics())
    name = open_.request.name
    assert found["diffcache_batches_total"] == stats.batches == 6
    assert found["diffcache_rows_total"] == stats.rows == 8
    assert found["diffcache_computed_rows_total"] == stats.rows_computed == 6
    assert found["diffcache_calls_total"] == 8
    assert found["diffcache_hit_rate"] == 0.25
    assert found['diffcache_requests_ended_total{state="finished"}'] == 1
    assert found["diffcache_open_requests"] == 1
    assert found[f'diffcache_request_hit_rate{{request="{name}"}}'] == pytest.approx(1 / 3)
    held = stats.requests[name].cached_bytes
    assert found[f'diffcache_request_cached_bytes{{request="{name}"}}'] == held > 0
    assert 0 < stats.own_seconds < stats.seconds


def test_a_call_that_a_request_makes_by_itself_counts() -> None:
    denoiser = Waves()
    with serving(denoiser) as server:
        job = Job("uniform", (("interval", 2), ("site", "stack")), steps=4)
        clients = [Client.of(server, job) for _ in range(2)]
        step_all(server, denoiser, clients)  # the first one's call finds the sites
        assert server.stats().rows_computed == 2
        step_all(server, denoiser, clients)
        assert server.stats().rows_computed == 4


def test_without_the_client_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("prometheus_client"):
            raise ImportError(name)
        return plain(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with serving(Waves()) as server, pytest.raises(DiffcacheError, match=r"pip install '\.\[serve\]'"):
        server.metrics()
