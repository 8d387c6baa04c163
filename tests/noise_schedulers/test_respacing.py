"""Respaced noise levels end where the nominal ones end, on every grid; shares of 1 change nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    UniPCMultistepScheduler,
)

from diffcache.noise_schedulers.respacing import respace, stretched
from diffcache.schedulers.errors import ScheduleError

GRIDS: dict[str, Any] = {
    "linear": lambda: FlowMatchEulerDiscreteScheduler(),
    "shifted": lambda: FlowMatchEulerDiscreteScheduler(shift=3.0),
    "flow, multistep": lambda: UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=5.0
    ),
    "Karras": lambda: EulerDiscreteScheduler(use_karras_sigmas=True),
    "exponential": lambda: DPMSolverMultistepScheduler(use_exponential_sigmas=True),
    "to sigma_min": lambda: DPMSolverMultistepScheduler(final_sigmas_type="sigma_min"),
}
SHARES = [1.0, 1.0, 0.5, 1.0, 0.2, 0.9, 1.0, 0.3, 0.3, 0.7]


@pytest.mark.parametrize("grid", GRIDS)
def test_levels_end_at_the_final_one(grid: str) -> None:
    scheduler = GRIDS[grid]()
    scheduler.set_timesteps(10)
    nominal, final = scheduler.sigmas[:-1].tolist(), float(scheduler.sigmas[-1])
    levels = stretched(nominal, final, SHARES)
    last = levels[-1] - (nominal[-1] - final) * (levels[-1] - final) / (nominal[-1] - final)
    assert last == pytest.approx(final, abs=1e-6)
    assert levels[:3] == pytest.approx(nominal[:3])
    assert all(mine >= plain for mine, plain in zip(levels, nominal, strict=True))
    assert levels == sorted(levels, reverse=True)
    before = scheduler.timesteps.clone()
    respace(scheduler, levels)
    assert scheduler.sigmas[:-1].tolist() == pytest.approx(levels, rel=1e-5)
    assert float(scheduler.sigmas[-1]) == final
    assert scheduler.timesteps.dtype == before.dtype
    torch.testing.assert_close(scheduler.timesteps[:3], before[:3], rtol=1e-5, atol=1e-3)
    assert (scheduler.timesteps[3:] >= before[3:]).all()


def test_on_an_even_grid_what_is_left_is_spread_evenly() -> None:
    nominal = [1.0, 0.75, 0.5, 0.25]
    assert stretched(nominal, 0.0, [1.0, 0.5, 1.0, 1.0]) == pytest.approx([1.0, 0.75, 0.625, 0.3125])


def test_shares_of_one_change_no_bit() -> None:
    nominal = torch.rand(50, dtype=torch.float64).sort(descending=True).values.tolist()
    assert stretched(nominal, 0.0, [1.0] * 50) == nominal


def test_a_noise_scheduler_without_levels_is_refused() -> None:
    scheduler = DDIMScheduler()
    scheduler.set_timesteps(4)
    with pytest.raises(ScheduleError, match="leave respace off"):
        respace(scheduler, [1.0] * 4)
