"""The bound over all requests: kept between calls, by gentle means first, and fairly."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from support.shared_loop import Client, Job, Waves, alone, step_all

from diffcache import serving
from diffcache.server.eviction import FEWER_BITS, HOST, RECOMPUTE, Eviction
from diffcache.server.request import Request, Usage

HOLD = ("interval", 4), ("tail_steps", 0)
"""Every fourth step is computed: 1 feature of 512 bytes, kept as two fp32 tensors of 256; and a few measured errors."""
FEATURE = 2 * 4 * 4 * 16 + 64


def jobs(count: int, rows: int = 1, steps: int = 8) -> list[Job]:
    return [Job("uniform", HOLD, steps=steps, seed=seed, rows=rows) for seed in range(count)]


@dataclass
class Holder:
    """Stands for a request that holds something."""

    cached_bytes: int
    saved: float = 0.0
    host_bytes: int = 0
    in_call: bool = False
    cache_dtype: str | None = None
    usage: Usage = field(default_factory=Usage)

    def __post_init__(self) -> None:
        self.usage.calls = int(self.saved)

    def narrower(self) -> str | None:
        return {None: "bfloat16", "bfloat16": "int8"}.get(self.cache_dtype)

    def recode(self, cache_dtype: str | None, *, on_host: bool) -> None:
        self.cache_dtype = cache_dtype
        moved, kept = (self.cached_bytes, 0) if on_host else (0, self.cached_bytes // 2)
        self.host_bytes, self.cached_bytes = moved, kept

    def forget(self) -> None:
        self.cached_bytes = 0

    count_eviction = Request.count_eviction


def kept(
    bound: int,
    holders: list[Holder],
    newest: int = 0,
    has_host: bool = True,
    gentle: object = (FEWER_BITS, HOST),
) -> None:
    Eviction(bound, gentle, has_host=has_host).keep(holders, holders[newest])  # type: ignore[arg-type]


def test_the_largest_is_narrowed_first_and_who_holds_his_share_loses_nothing() -> None:
    holders = [Holder(100), Holder(800), Holder(300)]
    kept(900, holders)
    assert [holder.cache_dtype for holder in holders] == [None, "bfloat16", None]
    assert [holder.cached_bytes for holder in holders] == [100, 400, 300]


def test_first_fewer_bits_then_host_memory_then_nothing() -> None:
    one = Holder(800)
    kept(500, [one])
    assert one.cache_dtype == "bfloat16"
    kept(300, [one])
    assert one.cache_dtype == "int8"
    kept(100, [one])
    assert (one.cached_bytes, one.host_bytes) == (0, 200)
    other = Holder(800)
    kept(100, [other], has_host=False)
    assert other.usage.evictions == {FEWER_BITS: 2, RECOMPUTE: 1}


def test_dropped_is_who_has_saved_most() -> None:
    holders = [Holder(100, saved=1), Holder(100, saved=9), Holder(100, saved=4)]
    kept(200, holders, newest=0, gentle=())
    assert [holder.cached_bytes for holder in holders] == [100, 0, 100]


def test_the_newest_gives_way_to_those_that_have_saved_as_little() -> None:
    holders = [Holder(100, saved=1), Holder(100, saved=4), Holder(100, saved=2)]
    kept(200, holders, newest=0, gentle=())
    assert [holder.cached_bytes for holder in holders] == [0, 100, 100]


def test_requests_in_calls_of_other_threads_are_left_alone() -> None:
    holders = [Holder(100), Holder(900, in_call=True)]
    kept(500, holders)
    assert holders[1].cached_bytes == 900


@pytest.mark.parametrize("gentle", [(), ("fewer bits",)])
def test_the_bound_is_kept_between_calls(gentle: tuple[str, ...]) -> None:
    denoiser, bound = Waves(), 3 * FEATURE
    with serving(denoiser, max_cache_bytes=bound, eviction=gentle) as server:
        clients = [Client.of(server, job) for job in jobs(8, steps=16)]
        most = 0
        while not clients[0].done:
            step_all(server, denoiser, clients)
            most = max(most, server.stats().cached_bytes)
        stats = server.stats()
    assert FEATURE < most <= bound
    assert set(stats.evictions) == ({RECOMPUTE} if gentle == () else {FEWER_BITS})
    assert stats.hit_rate > 0


@pytest.mark.parametrize("method", ["trajectory", "even"])
def test_a_request_holds_as_much_beside_others_as_alone(method: str) -> None:
    def held(count: int) -> list[int]:
        denoiser = Waves()
        with serving(denoiser) as server:
            asked = [Job(method, (("speedup", 2.0),), steps=12, seed=seed) for seed in range(count)]
            clients = [Client.of(server, job) for job in asked]
            found = []
            for _ in range(4):
                step_all(server, denoiser, clients)
                found.append(server.stats().cached_bytes // count)
        return found

    assert held(6) == held(1)


def test_without_room_for_all_some_keep_their_caches_and_all_get_their_turn() -> None:
    denoiser = Waves()
    with serving(denoiser, max_cache_bytes=4 * FEATURE, eviction=()) as server:
        clients = [Client.of(server, job) for job in jobs(8, steps=48)]
        while not clients[0].done:
            step_all(server, denoiser, clients)
        saved = [client.request.usage.saved for client in clients]
    assert sum(saved) > 0.5 * 4 * 48 * 3 / 4  # half of what four caches that are never dropped save
    assert min(saved) > 0
    assert max(saved) - min(saved) <= 12


def test_who_loses_nothing_gets_what_he_gets_alone() -> None:
    denoiser = Waves()
    with serving(denoiser, max_cache_bytes=2 * FEATURE * 4, eviction=()) as server:
        clients = [Client.of(server, job) for job in [*jobs(3), *jobs(1, rows=8)]]
        while not clients[0].done:
            step_all(server, denoiser, clients)
    assert clients[3].request.usage.evictions == {RECOMPUTE: 8}
    for client in clients[:3]:
        assert not client.request.usage.evictions
        assert torch.equal(client.x, alone(denoiser, client.job))


@pytest.mark.parametrize("method", ["uniform", "even"])
def test_fewer_bits_in_the_middle_of_a_run_change_little(method: str) -> None:
    denoiser, options = Waves(), {"uniform": HOLD, "even": (("speedup", 2.0),)}[method]
    job = Job(method, options, steps=16, guidance="batched")
    with serving(denoiser) as server:
        client = Client.of(server, job)
        while not client.done:
            step_all(server, denoiser, [client])
            if client.step == 6:
                before = client.request.cached_bytes
                client.request.recode("int8", on_host=False)
                assert client.request.cached_bytes < before / 2
                assert client.request.cache_dtype == "int8"
        assert client.request.report().computed_ticks
    exact = alone(denoiser, job)
    assert 0 < (client.x - exact).abs().max() < 0.05 * exact.abs().max()


def test_features_are_brought_back_from_host_memory() -> None:
    denoiser, job = Waves(), Job("uniform", HOLD, steps=8)
    with serving(denoiser) as server:
        client = Client.of(server, job)
        while not client.done:
            step_all(server, denoiser, [client])
            if client.step == 2:
                client.request.recode(None, on_host=True)
                assert client.request.host_bytes > 0 == client.request.cached_bytes
    assert (client.x - alone(denoiser, job)).abs().max() < 1e-5


def test_a_request_that_forgot_computes_and_goes_on() -> None:
    denoiser, job = Waves(), Job("uniform", HOLD, steps=12)
    with serving(denoiser) as server:
        client = Client.of(server, job)
        while not client.done:
            step_all(server, denoiser, [client])
            if client.step == 6:
                client.request.forget()
                assert client.request.cached_bytes < 64
        assert client.request.report().computed_ticks == [0, 4, 6, 8]
