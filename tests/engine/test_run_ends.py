"""However a run ends, nothing of it stays; calls that nobody looks at keep the names of their passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.toys import ToyDenoiser, ToyPipeline, by_embeds, toy_pipeline
from torch import Tensor

from diffcache import UniformConfig, accelerate, denoising_run, report
from diffcache.engine.engine import Engine
from diffcache.engine.obstacles import TRAINING
from diffcache.engine.scopes import Scope, innermost


class Breaks(Exception):
    pass


def breaks(*args: Any) -> None:
    raise Breaks


def inputs() -> tuple[Tensor, Tensor]:
    return torch.ones(1, 2, 4), torch.ones(1)


def left_in_the_middle() -> tuple[Scope, list[Engine]]:
    """A loop of one tick, and what it had made."""
    net = accelerate(ToyDenoiser().eval(), UniformConfig(interval=2))
    scopes, engines = list[Scope](), list[Engine]()

    def loop() -> None:
        with torch.no_grad(), denoising_run(net, 4) as run:
            run.begin_step(0)
            net(*inputs())
            scope = innermost()
            assert scope is not None
            assert scope.run is not None
            scopes.append(scope)
            engines.extend(scope.run.engines.values())
            assert [*engines[0].tensors()]

    with pytest.raises(Breaks):
        loop()
    return scopes[0], engines


def test_a_run_that_cannot_be_closed_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "close", breaks)
    scope, _ = left_in_the_middle()
    assert innermost() is None
    assert scope.run is None
    assert not scope.served


def test_what_a_run_has_stored_is_dropped_whatever_is_asked_about_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "note_expected_error", breaks)
    _, engines = left_in_the_middle()
    assert not [*engines[0].tensors()]
    assert not engines[0].branches.known


def test_a_call_that_nobody_looks_at_keeps_the_name_of_its_pass() -> None:
    def train(pipe: ToyPipeline, step: int, time: Tensor, tensors: dict[str, Any]) -> dict[str, Any]:
        pipe.transformer.train(step >= 3)
        return tensors

    pipe = accelerate(toy_pipeline(), UniformConfig(interval=2, tail_steps=0))
    pipe(by_embeds(cond=1.0, uncond=2.0), callback_on_step_end=train)
    told = report(pipe)
    assert told.branches == ["cond", "uncond"]
    assert {(tick, branch) for tick, branch, *_ in told.reasons[TRAINING]} == {
        (tick, branch) for tick in range(4, 8) for branch in ("cond", "uncond")
    }


class Bare:
    """A noise scheduler of nothing but what a loop needs."""

    timesteps = torch.arange(4, 0, -1)

    def step(self, output: Tensor, time: Tensor, sample: Tensor) -> tuple[Tensor]:
        return (sample + output / 8,)


class Barer:
    """One that is stepped by another name."""

    timesteps = Bare.timesteps


@pytest.mark.parametrize("kind", [Bare, Barer])
def test_a_noise_scheduler_need_not_have_a_configuration(kind: type) -> None:
    net = accelerate(ToyDenoiser().eval(), UniformConfig(interval=2, tail_steps=0))
    with torch.no_grad(), denoising_run(net, 4, noise_scheduler=kind()) as run:
        for i in range(4):
            run.begin_step(i)
            net(*inputs())
    assert report(net).computed_ticks == [0, 2]
