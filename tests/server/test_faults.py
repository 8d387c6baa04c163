"""What goes wrong with one request leaves the others unharmed, and nothing behind."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.shared_loop import Client, Job, Waves, alone, step_all

from diffcache import serving
from diffcache.schedulers.errors import ConfigError, DiffcacheError

HOLD = Job("uniform", (("interval", 3),), steps=9)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def failing(denoiser: Waves, when: list[bool]) -> Any:
    """A hook that raises an error in the middle of the forward, once `when` is not empty."""

    def hook(module: Any, args: Any) -> None:
        if when:
            when.clear()
            raise MemoryError("out of memory")

    return denoiser.blocks[1].register_forward_pre_hook(hook)


@pytest.mark.parametrize("site", ["model", "block"])
def test_after_an_error_in_a_batch_its_requests_compute_anew_and_the_others_go_on(site: str) -> None:
    denoiser, when = Waves(), list[bool]()
    failing(denoiser, when)
    options = (("interval", 4), ("site", site))
    with serving(denoiser) as server:
        hit, spared = (Client.of(server, Job("uniform", options, steps=9, seed=seed)) for seed in (1, 2))
        while not (hit.done and spared.done):
            if hit.step == 5 and spared.step == 5:
                when.append(True)
                hit.request.forget()  # so that it computes here
                with pytest.raises(MemoryError):
                    step_all(server, denoiser, [hit])
                assert hit.request.cached_bytes == 0
            step_all(server, denoiser, [hit, spared])
        assert server.stats().failed == 1
        reports = [client.request.report().runs for client in (hit, spared)]
        assert [client.request.report().num_ticks for client in (hit, spared)] == [9, 9]
    assert [len(runs) for runs in reports] == [2, 1]
    assert torch.equal(spared.x, alone(denoiser, spared.job))
    assert (hit.x - alone(denoiser, hit.job)).abs().max() < 0.2


def test_an_error_of_a_joint_call_leaves_nothing_suspended() -> None:
    denoiser, when = Waves(), list[bool]()
    failing(denoiser, when)
    with serving(denoiser) as server:
        clients = [Client.of(server, Job("uniform", (("interval", 1),), steps=3, seed=i)) for i in range(3)]
        when.append(True)
        with pytest.raises(MemoryError) as kept:
            step_all(server, denoiser, clients)
        for client in clients:
            while not client.done:
                step_all(server, denoiser, [client])
            assert torch.equal(client.x, alone(denoiser, client.job))
    del kept


def test_wrong_rows_leave_the_request_as_it_was() -> None:
    denoiser = Waves()
    with serving(denoiser) as server:
        client = Client.of(server, HOLD)
        while not client.done:
            if client.step == 4:
                with pytest.raises(DiffcacheError), server.batch([(client.request, 4)]):
                    denoiser(torch.randn(5, 4, 16), torch.zeros(5))
            step_all(server, denoiser, [client])
    assert torch.equal(client.x, alone(denoiser, HOLD))


def test_two_threads_serve_their_own_requests() -> None:
    denoiser, results = Waves(), dict[int, Client]()
    with serving(denoiser, max_cache_bytes=10**6) as server:

        def work(seed: int) -> None:
            pair = [Client.of(server, Job("uniform", (("interval", 3),), 12, seed + i)) for i in (0, 1)]
            while not pair[0].done:
                step_all(server, denoiser, pair)
            results.update({seed + i: client for i, client in enumerate(pair)})

        threads = [threading.Thread(target=work, args=(10 * n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len(results) == 8
    for client in results.values():
        assert torch.equal(client.x, alone(denoiser, client.job))
        assert client.request.usage.saved > 0


def test_a_request_is_in_one_batch_at_a_time() -> None:
    denoiser = Waves()
    with serving(denoiser) as server:
        request = server.request(4)
        refused = pytest.raises(DiffcacheError, match="another batch")
        with server.batch([(request, 0)]), refused, server.batch([(request, 0)]):
            pass
        with server.batch([(request, 0)]), pytest.raises(DiffcacheError, match="after the batch"):
            request.finish()


def test_a_request_does_not_end_while_a_batch_takes_it() -> None:
    """The other thread ends it at the moment at which the batch begins it."""
    denoiser, ending = Waves(), list[threading.Thread]()
    said: list[str] = []

    def end() -> None:
        try:
            request.finish()
        except DiffcacheError as error:
            said.append(str(error))

    def clock() -> float:
        if armed and not ending:
            ending.append(threading.Thread(target=end))
            ending[0].start()
            ending[0].join(0.5)
        return 0.0

    armed = list[bool]()
    with serving(denoiser, clock=clock) as server:
        client = Client.of(server, HOLD)
        request = client.request
        armed.append(True)
        with server.batch([(request, 0)]):
            assert request.state == "open"
            ending[0].join()
        assert said == [f"{request.name} is in a batch now: end it after the batch."]


@pytest.mark.parametrize("site", ["model", "block"])
def test_a_call_that_goes_on_while_the_server_is_closed_ends_as_it_would(site: str) -> None:
    denoiser, job = Waves(), Job("uniform", (("interval", 1), ("site", site)), steps=2)
    inside, closed = threading.Event(), threading.Event()

    def hook(*_: Any) -> None:
        inside.set()
        closed.wait(60)

    with serving(denoiser) as server:
        clients = [Client.of(server, job) for _ in range(2)]
        step_all(server, denoiser, clients)
        registered = denoiser.blocks[1].register_forward_pre_hook(hook)
        calling = threading.Thread(target=step_all, args=(server, denoiser, clients))
        calling.start()
        assert inside.wait(60)
        server.close()
        closed.set()
        calling.join(60)
        registered.remove()
        assert server.stats().failed == 0
    for client in clients:
        assert (client.request.state, client.request.cached_bytes) == ("closed", 0)
        assert torch.equal(client.x, alone(denoiser, job))


@pytest.mark.parametrize(
    "made",
    [
        lambda request: [request],
        lambda request: (request, 0),
        lambda request: request,
        lambda request: [("a", 0)],
        lambda request: [(request, 0, 1)],
    ],
)
def test_what_is_no_request_with_a_step_is_refused(made: Callable[[Any], Any]) -> None:
    with serving(Waves()) as server:
        request = server.request(4)
        sentence = r"a list of requests, each with the step that it is at, \[\(request, 0\)\], not"
        with pytest.raises(ConfigError, match=sentence), server.batch(made(request)):
            pass
        with server.batch([[request, 0]]):  # type: ignore[list-item]
            pass


def test_a_request_that_is_not_used_is_ended() -> None:
    denoiser, clock = Waves(), Clock()
    with serving(denoiser, timeout=30, clock=clock) as server:
        idle, busy = Client.of(server, HOLD), Client.of(server, HOLD)
        step_all(server, denoiser, [idle, busy])
        assert idle.request.cached_bytes > 0
        for _ in range(3):
            clock.now += 20
            step_all(server, denoiser, [busy])
        assert (idle.request.state, busy.request.state) == ("expired", "open")
        assert idle.request.cached_bytes == 0
        with pytest.raises(DiffcacheError, match="expired"):
            step_all(server, denoiser, [idle])
        assert server.stats().ended == {"expired": 1}


def test_a_request_that_nobody_keeps_is_gone() -> None:
    denoiser = Waves()
    with serving(denoiser) as server:
        client = Client.of(server, HOLD)
        step_all(server, denoiser, [client])
        gone = weakref.ref(client.request)
        del client
        gc.collect()
        assert gone() is None
        stats = server.stats()
    assert stats.ended == {"lost": 1}
    assert (stats.requests, stats.calls) == ({}, 1)


def test_finished_requests_hold_nothing() -> None:
    denoiser = Waves()
    with serving(denoiser) as server:
        with Client.of(server, HOLD).request as request, torch.no_grad():
            with server.batch([(request, 0)]):
                denoiser(torch.randn(1, 4, 16), torch.ones(1))
            assert request.cached_bytes > 0
        assert (request.state, request.cached_bytes) == ("finished", 0)
        aborted = pytest.raises(KeyError)
        with aborted, server.request(3) as other:
            raise KeyError
        assert other.state == "aborted"
        left = server.request(3)
    assert left.state == "closed"


def test_a_step_that_comes_again_is_begun_anew() -> None:
    denoiser, x, t = Waves(), torch.randn(1, 4, 16), torch.ones(1)
    with serving(denoiser) as server, torch.no_grad():
        request = server.request(9, config="uniform", interval=3)
        for step in (0, 1, 2, 2, 3, 1):
            with server.batch([(request, step)]):
                denoiser(x, t)
        report = request.report()
    assert [run.computed_ticks for run in report.runs] == [[0], [2, 3], [1]]
    assert report.num_ticks == 4
    assert report.computed_ticks == [0, 1, 2, 3]
    assert report.called.shape == (4, 1, 1)


def test_a_name_is_given_once() -> None:
    with serving(Waves()) as server:
        first = server.request(2, name="a")
        with pytest.raises(ConfigError, match="another name"):
            server.request(2, name="a")
        first.finish()
        assert server.request(2, name="a").state == "open"


def test_automatic_names_leave_out_given_ones() -> None:
    with serving(Waves()) as server:
        requests = [server.request(2, name="request 2"), *(server.request(2) for _ in range(2))]
        assert [request.name for request in requests] == ["request 2", "request 1", "request 3"]
