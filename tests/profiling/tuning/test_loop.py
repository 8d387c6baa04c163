"""tune on a loop that somebody wrote by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from torch import Tensor, nn

from diffcache import accelerate, denoising_run, report, tune
from diffcache.profiling.recording.loops import Loop
from diffcache.schedulers.errors import DiffcacheError

TICKS = 12


class Bending(nn.Module):
    """Its velocity bends in time and leans against its sample."""

    def __init__(self) -> None:
        super().__init__()
        self.lean = nn.Parameter(torch.tensor(0.5))

    def forward(self, hidden_states: Tensor, timestep: Tensor) -> Tensor:
        return self.lean * hidden_states + torch.sin(3 * hidden_states + timestep / 200)


def drawn(net: nn.Module, seed: int, **call: Any) -> Tensor:
    schedule = FlowMatchEulerDiscreteScheduler()
    schedule.set_timesteps(TICKS)
    sample = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad(), denoising_run(net, num_steps=TICKS, noise_scheduler=schedule) as run:
        for tick, time in enumerate(schedule.timesteps):
            run.begin_step(tick)
            sample = schedule.step(net(sample, time), time, sample).prev_sample
    return (sample / 4 + 0.5).clamp(0, 1)


def test_a_loop_is_tuned_as_a_pipeline_is(tmp_path: Any) -> None:
    net = Bending().eval()
    found = tune(Loop(net, drawn), [{"seed": seed} for seed in range(9)], speedup=3, folder=tmp_path)
    assert len(found.measured["verify"]) > 0
    accelerate(net, tmp_path)
    drawn(net, 100)
    assert len(report(net).computed_ticks) == TICKS // 3


@pytest.mark.parametrize(
    ("run", "prompts", "sentence"),
    [
        (drawn, ["a fox"], "missing a required argument: 'seed'"),
        (lambda net, seed: drawn(net, seed), [{"seed": 0}], "unexpected keyword argument 'generator'"),
        (lambda net, **call: torch.zeros(1, 3, 8, 8), [{"seed": 0}], "runs inside denoising_run"),
    ],
)
def test_a_loop_that_cannot_be_called_so_is_refused_in_a_sentence(
    run: Any, prompts: list[Any], sentence: str
) -> None:
    with pytest.raises(DiffcacheError, match=sentence):
        tune(Loop(Bending().eval(), run), prompts, speedup=3)
