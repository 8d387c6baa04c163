"""Hand-written loops: branches by their order, steps as told, and nothing of one loop in another."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextvars import copy_context
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from support.toys import MARKS, ToyDenoiser
from torch import Tensor, nn

from diffcache import accelerate, denoising_run, paused, report, restore

STEPS = 8


def toy(method: str | None = "uniform", **options: Any) -> ToyDenoiser:
    net = ToyDenoiser().eval()
    return net if method is None else accelerate(net, method, **options)


def embed(mark: float) -> Tensor:
    return torch.full((1, 2, 4), mark)


def start() -> Tensor:
    return torch.arange(8.0).reshape(1, 2, 4)


def loop(
    net: nn.Module, marks: Sequence[float] = tuple(MARKS.values()), steps: int = STEPS, run: Any = None
) -> Tensor:
    """Embeddings are made anew at each call: only their order tells the guidance passes apart."""
    x = start()
    for i in range(steps):
        if run is not None:
            run.begin_step(i)
        outputs = [net(x, torch.ones(1), embed(mark))[0] for mark in marks]
        x = x + sum((k + 1) * (output - x) for k, output in enumerate(outputs)) / 8
    return x


@torch.no_grad()
def cached(net: nn.Module, *args: Any, num_steps: int = STEPS, **kwargs: Any) -> Tensor:
    with denoising_run(net, num_steps) as run:
        return loop(net, *args, run=run, **kwargs)


def test_calls_after_a_step_begins_are_branches_in_order() -> None:
    net = toy(interval=2)
    assert torch.equal(cached(net), loop(toy(None)))
    told = report(net)
    assert told.branches == ["0", "1", "2"]
    assert told.computed_ticks == [0, 2, 4, 6, 7]
    assert told.compute_fraction == 5 / 8
    assert torch.equal(cached(net, (1.0,)), loop(toy(None), (1.0,)))
    assert report(net).branches == ["0"]


def test_one_loop_leaves_nothing_to_the_next() -> None:
    net = toy(interval=4)
    for marks in [(3.0, -5.0), (-5.0, 3.0), (7.0,), (3.0, -5.0)]:
        assert torch.equal(cached(net, marks), loop(toy(None), marks))
        assert report(net).computed_ticks == [0, 4, 7]
    with pytest.raises(TypeError), torch.no_grad(), denoising_run(net, STEPS) as run:
        loop(net, (9.0, "no number"), run=run)
    assert torch.equal(cached(net), loop(toy(None)))


def test_going_back_begins_another_run() -> None:
    net = toy(interval=4)
    with torch.no_grad(), denoising_run(net, STEPS) as run:
        for marks in [(3.0, -5.0), (-5.0, 3.0)]:
            assert torch.equal(loop(net, marks, run=run), loop(toy(None), marks))
        run.begin_step(7)
        net(start(), torch.ones(1), embed(1.0))
        run.begin_step(7)  # a step that begins again does not continue the one before
        output = net(start(), torch.ones(1), embed(2.0))[0]
    assert torch.equal(output, start() + 2)
    assert [run.computed_ticks for run in report(net).runs] == [[0, 4, 7], [0, 4, 7], [7], [7]]


def test_a_step_may_be_begun_twice_before_its_calls() -> None:
    net = toy(interval=2)
    with torch.no_grad(), denoising_run(net, STEPS) as run:
        for i in range(STEPS):
            run.begin_step(i)
            run.begin_step(i)
            net(start(), torch.ones(1), embed(1.0))
    assert report(net).computed_ticks == [0, 2, 4, 6, 7]
    assert len(report(net).runs) == 1


@pytest.mark.parametrize("restarts", [False, True], ids=["samples", "a loop that begins anew"])
def test_a_step_that_is_begun_again_after_a_call_computes_and_says_why(restarts: bool) -> None:
    """Another sample in the same step, or the loop from its first step on: neither may get the other's features."""
    net = toy(interval=4)
    with torch.no_grad(), denoising_run(net, STEPS) as run:
        for i in range(STEPS):
            for mark in (3.0, -5.0) if i == 0 or not restarts else (-5.0,):
                run.begin_step(i)
                assert torch.equal(net(start(), torch.ones(1), embed(mark))[0], start() + mark)
    assert report(net).compute_fraction == 1
    assert (
        "a step was begun again after a call in it: call begin_step once for each step"
        in report(net).notes[0]
    )


def test_samples_within_a_step_are_passes_of_it() -> None:
    net = toy(interval=2)
    assert torch.equal(cached(net, (1.0, 2.0, 3.0)), loop(toy(None), (1.0, 2.0, 3.0)))
    assert report(net).compute_fraction == 5 / 8


def test_a_loop_of_one_step_may_be_run_again() -> None:
    net = toy(interval=2)
    with torch.no_grad(), denoising_run(net, 1) as run:
        for mark in (1.0, 2.0):
            run.begin_step(0)
            assert torch.equal(net(start(), torch.ones(1), embed(mark))[0], start() + mark)
    assert len(report(net).runs) == 2
    assert "begun again" not in report(net).notes[0]


@pytest.mark.parametrize("i", [-1, STEPS, STEPS + 1])
@pytest.mark.parametrize("method", ["uniform", None])
def test_a_step_that_is_not_of_the_loop_is_refused(i: int, method: str | None) -> None:
    net = toy(method)
    with denoising_run(net, STEPS) as run, pytest.raises(ValueError, match="begin_step"):
        run.begin_step(i)


@pytest.mark.parametrize(("num_steps", "sigmas"), [(0, None), (-3, None), (True, None), (4, [1.0, 0.5, 0.2])])
@pytest.mark.parametrize("method", ["uniform", None])
def test_a_loop_that_cannot_be_is_refused(num_steps: int, sigmas: Any, method: str | None) -> None:
    with pytest.raises(ValueError, match="step"), denoising_run(toy(method), num_steps, sigmas):
        pass


def begun_at(index: int) -> FlowMatchEulerDiscreteScheduler:
    noise_scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    noise_scheduler.set_timesteps(STEPS)
    if index:
        noise_scheduler.set_begin_index(index)
    return noise_scheduler


@pytest.mark.parametrize("sigmas", [None, [0.5, 0.4, 0.3, 0.2, 0.1]])
def test_a_loop_may_begin_later_as_in_image_to_image(sigmas: list[float] | None) -> None:
    net, noise_scheduler, x = toy(hindsight=True, basis="velocity"), begun_at(3), start()
    with torch.no_grad(), denoising_run(net, STEPS - 3, sigmas, noise_scheduler) as run:
        for i, t in enumerate(noise_scheduler.timesteps[3:]):
            run.begin_step(i)
            x = noise_scheduler.step(net(x, t[None])[0], t, x)[0]
    (record,) = report(net).records
    assert record.num_ticks == STEPS - 3
    assert record.sigmas == (sigmas or pytest.approx(noise_scheduler.sigmas[3:-1].tolist()))
    assert not report(net).notes


def test_a_loop_that_begins_later_says_so_to_its_noise_scheduler() -> None:
    with (
        pytest.raises(ValueError, match="set_begin_index"),
        denoising_run(toy(), STEPS - 3, noise_scheduler=begun_at(0)),
    ):
        pass


@pytest.mark.parametrize("as_sigmas", [list, tuple, torch.tensor])
def test_sigmas_may_be_numbers_or_a_tensor(as_sigmas: Any) -> None:
    net = toy(interval=2, order=1, basis="residual")
    with torch.no_grad(), denoising_run(net, 4, as_sigmas([1.0, 0.75, 0.5, 0.25, 0.0])) as run:
        assert torch.equal(loop(net, steps=4, run=run), loop(toy(None), steps=4))
    assert report(net).records[0].sigmas == [1.0, 0.75, 0.5, 0.25]


def test_over_a_plain_module_it_does_nothing() -> None:
    net = toy(None)
    cls = type(net)
    assert torch.equal(cached(net), loop(net))
    assert type(net) is cls
    with pytest.raises(ValueError, match="not accelerated"):
        report(net)
    restored = restore(toy())
    assert torch.equal(cached(restored), loop(net))


def test_calls_before_the_first_step_compute() -> None:
    net = toy(interval=2)
    with torch.no_grad(), denoising_run(net, STEPS) as run:
        for mark in (1.0, 2.0):
            assert torch.equal(net(start(), torch.ones(1), embed(mark))[0], start() + mark)
        assert torch.equal(loop(net, run=run), loop(toy(None)))
    assert len(report(net).calls) == 3 * STEPS


def test_calls_after_a_loop_compute_and_it_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    net = toy(interval=4)
    cached(net)
    told = report(net).decisions
    with caplog.at_level(logging.WARNING, logger="diffcache"), torch.no_grad():
        for mark in (1.0, 2.0, 3.0):
            assert torch.equal(net(start(), torch.ones(1), embed(mark))[0], start() + mark)
    assert len([r for r in caplog.records if "outside" in r.message]) == 1
    assert report(net).decisions.equal(told)


def test_skipped_steps_and_an_unfinished_loop() -> None:
    net = toy(interval=4)
    with torch.no_grad(), denoising_run(net, STEPS) as run:
        for i in (0, 1, 3, 4, 6):
            run.begin_step(i)
            for mark in MARKS.values():
                assert torch.equal(net(start() * i, torch.ones(1), embed(mark))[0], start() * i + mark)
    assert report(net).computed_ticks == [0, 4]


def test_more_calls_than_guidance_passes_compute() -> None:
    marks = [float(mark) for mark in range(11)]
    net = toy(interval=4)
    assert torch.equal(cached(net, marks), loop(toy(None), marks))
    called = [call for call in report(net).calls if call.tick == 1]
    assert [call.computed for call in called] == [0.0] * 8 + [1.0] * 3


def test_paused_loops_compute() -> None:
    net = toy(interval=4)
    cached(net)
    told = report(net).decisions
    with paused(net):
        assert torch.equal(cached(net, (1.0,)), loop(toy(None), (1.0,)))
    assert report(net).decisions.equal(told)


def test_a_loop_inside_a_loop_over_the_same_denoiser() -> None:
    """As a preview: the inner loop is a run of its own, and the outer one goes on as if it had not been."""
    net = toy(interval=4)
    x = start()
    with torch.no_grad(), denoising_run(net, STEPS) as run:
        for i in range(STEPS):
            run.begin_step(i)
            outputs = [net(x, torch.ones(1), embed(mark))[0] for mark in MARKS.values()]
            if i in (0, 2):
                assert torch.equal(cached(net, (9.0, 1.0)), loop(toy(None), (9.0, 1.0)))
            x = x + sum((k + 1) * (output - x) for k, output in enumerate(outputs)) / 8
    assert torch.equal(x, loop(toy(None)))
    assert report(net).computed_ticks == [0, 4, 7]


@pytest.mark.parametrize("other", ["accelerated", "plain"])
def test_two_denoisers_in_one_loop(other: str) -> None:
    """Each has its own `denoising_run`, one inside the other; both reuse."""
    one, two = toy(interval=2), toy("uniform" if other == "accelerated" else None)
    x = start()
    with torch.no_grad(), denoising_run(one, STEPS) as outer, denoising_run(two, STEPS) as inner:
        for i in range(STEPS):
            outer.begin_step(i)
            inner.begin_step(i)
            a = one(x, torch.ones(1), embed(3.0))[0]
            b = two(x, torch.ones(1), embed(-5.0))[0]
            assert torch.equal(a, x + 3)
            assert torch.equal(b, x - 5)
            x = x + (a - b) / 8
    assert report(one).computed_ticks == [0, 2, 4, 6, 7]
    if other == "accelerated":
        assert report(two).computed_ticks == [0, 2, 4, 6, 7]


@pytest.mark.parametrize(
    "orders", [["cu", "uc"] * 3, ["c", "c", "uc", "uc", "c", "c"]], ids=["they take turns", "an interval"]
)
def test_passes_are_not_mixed_up_whose_tensors_stay(orders: list[str]) -> None:
    marks = {"c": torch.full((1, 2, 4), 3.0), "u": torch.full((1, 2, 4), -5.0)}
    x = torch.ones(1, 2, 4)
    net = accelerate(ToyDenoiser().eval(), "uniform", interval=2, tail_steps=0)
    with torch.no_grad(), denoising_run(net, len(orders)) as run:
        for i, order in enumerate(orders):
            run.begin_step(i)
            for name in order:
                found = net(x, torch.ones(1), encoder_hidden_states=marks[name])[0]
                assert torch.equal(found, x + marks[name].mean())
    assert report(net).compute_fraction < 1


class Positional(ToyDenoiser):
    def forward(self, *args: Any) -> tuple[Tensor]:
        return super().forward(*args)


class Keywords(ToyDenoiser):
    def forward(self, **kwargs: Any) -> tuple[Tensor]:
        return super().forward(**kwargs)


@pytest.mark.parametrize("cls", [Positional, Keywords])
def test_a_denoiser_may_name_no_argument(cls: type[ToyDenoiser]) -> None:
    net, x = accelerate(cls().eval(), "uniform", interval=2), start()
    with torch.no_grad(), denoising_run(net, STEPS) as run:
        for i in range(STEPS):
            run.begin_step(i)
            given = {"hidden_states": x, "timestep": torch.ones(1), "encoder_hidden_states": embed(3.0)}
            output = net(**given)[0] if cls is Keywords else net(*given.values())[0]
            assert torch.equal(output, start() + 3)
    assert report(net).compute_fraction < 1


def test_a_generator_may_be_stepped_in_a_new_context_each_time() -> None:
    def steps(net: nn.Module) -> Iterator[Tensor]:
        x = start()
        with torch.no_grad(), denoising_run(net, STEPS) as run:
            for i in range(STEPS):
                run.begin_step(i)
                x = x - net(x, torch.ones(1), embed(3.0))[0] / STEPS
                yield x

    here, there = toy(interval=2), toy(interval=2)
    expected = [*steps(here)]
    stepping = steps(there)
    found = [copy_context().run(next, stepping) for _ in range(STEPS)]
    assert all(map(torch.equal, found, expected))
    assert next(stepping, None) is None
    assert report(there).computed_ticks == report(here).computed_ticks
    assert report(there).compute_fraction < 1
