"""Requests that share calls: each gets what it would get alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.shared_loop import SHAPE, Client, Job, Waves, alone, step_all
from torch import Tensor, nn

from diffcache import accelerate, report, restore, serving
from diffcache.hooks.class_swap import is_swapped
from diffcache.schedulers.errors import ConfigError, DiffcacheError, TargetError

METHODS = (
    Job(),
    Job("easycache", (("threshold", 0.2), ("warmup_steps", 2)), steps=9, seed=1),
    Job("uniform", (("interval", 2), ("order", 1)), steps=7, seed=2, guidance="batched"),
    Job("even", (("speedup", 2.0),), steps=12, seed=3, guidance="apart"),
    Job("uniform", (("interval", 2), ("order", 2), ("hindsight", True)), steps=8, seed=4, rows=2),
    Job("uniform", (("interval", 3), ("site", "block")), steps=8, seed=5, guidance="apart"),
    Job("uniform", (("interval", 2), ("site", "stack")), steps=8, seed=6, guidance="batched", rows=3),
    Job("fbcache", (("threshold", 0.3),), steps=10, seed=7),
    Job(
        "easycache", (("threshold", 0.3), ("warmup_steps", 1), ("per_sample", True)), steps=9, seed=8, rows=3
    ),
    Job("uniform", (("interval", 2), ("cache_dtype", "int8")), steps=9, seed=9, guidance="batched"),
)


def served(denoiser: Waves, jobs: tuple[Job, ...] | list[Job], **limits: object) -> list[Client]:
    """Serves these jobs; at every third batch the first one pauses."""
    with serving(denoiser, **limits) as server:  # type: ignore[arg-type]
        clients = [Client.of(server, job) for job in jobs]
        batches = 0
        while left := [client for client in clients if not client.done]:
            batches += 1
            step_all(server, denoiser, left[1:] if batches % 3 == 0 and len(left) > 1 else left)
    return clients


@pytest.mark.parametrize("job", METHODS, ids=lambda job: f"{job.method}-{dict(job.options).get('site', '')}")
def test_a_request_beside_others_gets_what_it_gets_alone(job: Job) -> None:
    denoiser = Waves()
    others = [Job(seed=11), Job("uniform", (("interval", 3),), seed=12, guidance="batched")]
    client = served(denoiser, [others[0], job, others[1]])[1]
    assert torch.equal(client.x, alone(denoiser, job))
    assert job.method is None or not client.request.report().decisions.all()


def test_all_methods_in_one_batch() -> None:
    denoiser = Waves()
    clients = served(denoiser, METHODS)
    for client in clients:
        assert torch.equal(client.x, alone(denoiser, client.job)), client.job


def test_rows_that_reuse_are_left_out_of_the_call() -> None:
    denoiser, rows = Waves(), list[int]()
    denoiser.blocks[0].register_forward_pre_hook(lambda module, args: rows.append(len(args[0])))
    with serving(denoiser) as server:
        jobs = [Job(steps=4), Job("uniform", (("interval", 2), ("tail_steps", 0)), steps=4)]
        clients = [Client.of(server, job) for job in jobs]
        while not clients[0].done:
            step_all(server, denoiser, clients)
        stats = server.stats()
    assert rows == [2, 1, 2, 1]
    assert (stats.batches, stats.rows, stats.rows_computed) == (4, 8, 6)
    assert (stats.calls, stats.computed, stats.hit_rate) == (8, 6, 0.25)
    assert stats.requests[clients[1].request.name].hit_rate == 0.5


def test_a_batch_in_which_all_reuse_does_not_call_the_denoiser() -> None:
    denoiser, calls = Waves(), list[int]()
    denoiser.blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))
    served(denoiser, [Job("uniform", (("interval", 2), ("tail_steps", 0)), steps=4, seed=i) for i in (1, 2)])
    assert len(calls) < 2 * 4


def test_rows_of_a_unit_that_are_reused_are_left_out() -> None:
    denoiser, rows = Waves(), list[int]()
    denoiser.blocks[1].register_forward_pre_hook(lambda module, args: rows.append(len(args[0])))
    with serving(denoiser) as server:
        options = (("interval", 2), ("tail_steps", 0), ("site", "block"))
        clients = [Client.of(server, job) for job in (Job(steps=4), Job("uniform", options, steps=4))]
        while not clients[0].done:
            step_all(server, denoiser, clients)
    assert rows == [1, 1, 1, 2, 1]  # the first call with sites inside is computed by itself


class Positions(nn.Module):
    """A table that is the same for all samples, as denoisers make for rotary embeddings."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return torch.linspace(0, 1, hidden_states[0].numel()).reshape(SHAPE)


class WavesWithPositions(Waves):
    """`Waves` with two units outside of sites: one returns no row for each sample, one is given several."""

    def __init__(self) -> None:
        super().__init__()
        self.positions, self.patches = Positions(), nn.Linear(SHAPE[1], 1)

    def forward(self, hidden_states: Tensor, timestep: Tensor, prompt: Tensor | None = None) -> tuple[Tensor]:
        self.patches(hidden_states.reshape(-1, 2, SHAPE[1]))
        return super().forward(hidden_states, timestep, prompt, ids=self.positions(hidden_states))


def test_requests_go_on_to_share_calls_where_units_outside_of_sites_have_no_row_for_each() -> None:
    denoiser, rows = WavesWithPositions(), list[int]()
    denoiser.blocks[1].register_forward_pre_hook(lambda module, args: rows.append(len(args[0])))
    with serving(denoiser) as server:
        for expected in ([1, 1, 2], [2, 2]):  # where sites are known, the first call is shared too
            rows.clear()
            options = (("interval", 2), ("tail_steps", 0), ("site", "stack"))
            clients = [Client.of(server, Job("uniform", options, steps=4, seed=seed)) for seed in (1, 2)]
            while not clients[0].done:
                step_all(server, denoiser, clients)
            assert rows == expected
            for client in clients:
                assert torch.equal(client.x, alone(WavesWithPositions(), client.job))
                client.request.finish()


@pytest.mark.parametrize("order", ["passes", "requests"])
def test_rows_of_both_passes_come_in_either_order(order: str) -> None:
    denoiser = Waves()
    with serving(denoiser) as server, torch.no_grad():
        a = server.request(1, guidance="batched")
        b = server.request(1, guidance="batched")
        x = torch.arange(4.0).reshape(4, 1, 1).expand(4, 4, 16).contiguous()
        with server.batch([(a, 0), (b, 0)], order=order):
            shared = denoiser(x, torch.zeros(4))[0]
    assert torch.equal(shared, denoiser(x, torch.zeros(4))[0])


def test_a_step_may_come_in_two_batches() -> None:
    denoiser, job = Waves(), Job("uniform", (("interval", 2),), steps=6, guidance="apart")
    with serving(denoiser) as server, torch.no_grad():
        client = Client.of(server, job)
        while not client.done:
            t, values = client.times.timesteps[client.step].expand(1), []
            for prompt in (torch.zeros(1), job.prompt()):
                with server.batch([(client.request, client.step)]):
                    values.append(denoiser(client.x, t, prompt)[0])
            client.advance(values[0] + 2 * (values[1] - values[0]))
    assert torch.equal(client.x, alone(denoiser, job))
    assert client.request.report().compute_fraction < 1


def test_a_request_has_a_report_of_its_own() -> None:
    denoiser = Waves()
    fast, slow = served(
        denoiser, [Job("uniform", (("interval", 3),), steps=9), Job("uniform", (("interval", 1),), steps=9)]
    )
    assert fast.request.report().computed_ticks == [0, 3, 6, 8]
    assert slow.request.report().computed_ticks == list(range(9))


def test_a_request_without_a_method_says_so_in_its_report() -> None:
    (plain,) = served(Waves(), [Job(steps=4)])
    assert plain.request.report().summary().startswith("none: not cached, and its calls are not counted")


def test_the_denoiser_is_left_as_it_was() -> None:
    denoiser = Waves()
    with serving(denoiser):
        assert is_swapped(denoiser)
    assert not any(map(is_swapped, denoiser.modules()))
    with serving(denoiser) as server, server.request(3, config="uniform", site="block", interval=2):
        assert is_swapped(denoiser.blocks[0])
    assert not any(map(is_swapped, denoiser.modules()))


def test_outside_a_batch_the_denoiser_computes() -> None:
    denoiser, x = Waves(), torch.randn(2, 4, 16)
    plain = denoiser(x, torch.ones(2))[0]
    with serving(denoiser):
        assert torch.equal(denoiser(x, torch.ones(2))[0], plain)


def test_an_accelerated_denoiser_is_not_served() -> None:
    denoiser = accelerate(Waves())
    with pytest.raises(TargetError, match="restore it first"), serving(denoiser):
        pass
    assert report(denoiser).method
    restore(denoiser)


def test_one_server_at_a_time() -> None:
    denoiser = Waves()
    with serving(denoiser), pytest.raises(TargetError, match="served already"), serving(denoiser):
        pass


def test_nobody_takes_a_denoiser_away_from_its_server() -> None:
    denoiser, x = Waves(), torch.randn(1, 4, 16)
    with serving(denoiser) as server, torch.no_grad():
        request = server.request(4, config="uniform", interval=2)
        for take_away in (accelerate, restore):
            with pytest.raises(TargetError, match="is being served: leave"):
                take_away(denoiser)
        for step in range(4):
            with server.batch([(request, step)]):
                denoiser(x, torch.ones(1))
        assert len(request.report().computed_ticks) < 4
    restore(accelerate(denoiser))


def test_what_is_wrong_is_said() -> None:
    denoiser, x, t = Waves(), torch.randn(2, 4, 16), torch.ones(2)
    for wrong in ({"max_cache_bytes": 0}, {"timeout": -1}, {"eviction": "host"}, {"shared": "ids"}):
        with pytest.raises(ConfigError), serving(denoiser, **wrong):  # type: ignore[arg-type]
            pass
    with serving(denoiser) as server, torch.no_grad():
        a, b = server.request(4), server.request(4)
        with pytest.raises(ConfigError, match="did you mean"):
            server.request(4, config="easycash")
        with pytest.raises(ConfigError, match="config="):
            server.request(4, threshold=0.1)
        with pytest.raises(ConfigError, match="speedup=5 cannot be met in 4 steps"):
            server.request(4, speedup=5)
        with pytest.raises(ConfigError, match="guidance"):
            server.request(4, guidance="both")  # type: ignore[arg-type]
        with (
            pytest.raises(DiffcacheError, match="request 1 has steps 0 to 3, and this batch says 4"),
            server.batch([(a, 4)]),
        ):
            pass
        with pytest.raises(DiffcacheError, match="twice"), server.batch([(a, 0), (a, 1)]):
            pass
        with pytest.raises(ConfigError, match="rows_per_request"), server.batch([(a, 0)], [1, 2]):
            pass
        wrong: list[Any] = [True, [True], 0, 1.5]
        for rows in wrong:
            with pytest.raises(ConfigError, match="rows_per_request"), server.batch([(a, 0)], rows):
                pass
        with pytest.raises(TargetError, match="have 1"), server.batch([(a, 0)]):
            denoiser(x, t)
        with server.batch([(a, 0), (b, 0)]):
            denoiser(x, t)
            with pytest.raises(TargetError, match="another batch"):
                denoiser(x, t)
        a.finish()
        with pytest.raises(DiffcacheError, match=r"over \(finished\)"), server.batch([(a, 1)]):
            pass
        foreign = pytest.raises(DiffcacheError, match="another server")
        with serving(Waves()) as other, foreign, other.batch([(b, 0)]):
            pass
    with pytest.raises(TargetError, match="server is over"):
        server.request(4)
