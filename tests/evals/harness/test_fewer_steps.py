"""Other noise schedulers for the plain pipeline, as pipelines call them."""

from types import SimpleNamespace

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from diffcache.evals.harness.fewer_steps import OWN, noise_schedulers, render_with_steps
from diffcache.evals.testbeds import zoo

STEPS = 8
SIGMAS = [1 - i / STEPS for i in range(STEPS)]


@pytest.mark.parametrize("dynamic", [True, False])
def test_flow_solvers_take_what_fluxs_pipelines_give_them(dynamic: bool) -> None:
    own = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=dynamic)
    found = noise_schedulers(SimpleNamespace(scheduler=own))
    assert list(found) == [OWN, "DPM++ 2M", "UniPC"]
    levels = []
    for noise_scheduler in found.values():
        noise_scheduler.set_timesteps(sigmas=SIGMAS, mu=0.5)
        assert len(noise_scheduler.timesteps) == STEPS
        levels.append(noise_scheduler.sigmas[:STEPS].tolist())
    for others in levels[1:]:
        assert others == pytest.approx(levels[0], abs=2 / own.config.num_train_timesteps)


def test_a_pipeline_that_always_gives_ddims_options_has_all_of_them() -> None:
    pipe, pictures = zoo.load("ddpm"), []
    for noise_scheduler in noise_schedulers(pipe).values():
        call = zoo.sample_call("ddpm", 0, 3, 1)
        pictures.append(render_with_steps(pipe, call, 3, noise_scheduler).pictures)
    assert len(pictures) == 3
    assert not torch.equal(pictures[0], pictures[1])
    assert not torch.equal(pictures[1], pictures[2])
