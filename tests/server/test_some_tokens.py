"""Requests that compute some of their tokens: by themselves, beside others in the same batch."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from zoo import denoisers

from diffcache import accelerate, denoising_run, serving
from diffcache.schedulers.errors import ConfigError

STEPS = 8
LEVELS = [1 - i / STEPS for i in range(STEPS)]
CASE = denoisers.get("FluxTransformer2DModel-kontext")


def arguments(step: int) -> dict[str, Any]:
    """Two samples, whose reference pictures stand still."""
    given = CASE.inputs(torch.Generator().manual_seed(0), 2)
    given = CASE.at(given, CASE.time_values(STEPS)[step], 0)
    latents, reference = given["hidden_states"].chunk(2, dim=1)
    return {**given, "hidden_states": torch.cat([latents * (1 - step / 20), reference], dim=1)}


def sample(given: dict[str, Any], i: int) -> dict[str, Any]:
    has_rows = lambda value: isinstance(value, Tensor) and len(value) == 2
    return {name: value[i : i + 1] if has_rows(value) else value for name, value in given.items()}


def twice(given: dict[str, Any]) -> dict[str, Any]:
    is_row = lambda value: isinstance(value, Tensor) and value.ndim > 0 and len(value) == 1
    return {name: torch.cat([value, value]) if is_row(value) else value for name, value in given.items()}


@pytest.mark.parametrize(
    "method", [{"config": "regione"}, {"config": "uniform", "interval": 2, "rows": "context"}]
)
@torch.no_grad()
def test_a_request_gets_what_it_gets_alone_and_its_rows_are_counted(method: dict[str, Any]) -> None:
    denoiser = CASE.build()
    alone = accelerate(copy.deepcopy(denoiser), **method)
    with serving(denoiser) as server, denoising_run(alone, STEPS, sigmas=LEVELS) as run:
        first, second = (server.request(STEPS, sigmas=LEVELS, **method) for _ in range(2))
        for step in range(STEPS):
            run.begin_step(step)
            before, given = server.stats(), arguments(step)
            with server.batch([(first, step), (second, step)]):
                output = denoiser(**given)[0]
            if step > 0:  # the first call also finds out how tokens are left out
                computes = server.stats().computed > before.computed
                assert server.stats().rows_computed - before.rows_computed == 2 * computes
            assert torch.equal(output[:1], alone(**sample(given, 0))[0])
        assert "%" in first.report().summary().splitlines()[1]
        assert second.report().compute_fraction == first.report().compute_fraction < 1


@torch.no_grad()
def test_fewer_bits_in_the_middle_of_a_run_change_little() -> None:
    denoiser, method = CASE.build(), {"config": "uniform", "interval": 2, "rows": "context"}
    with serving(denoiser) as server:
        exact, recoded = (server.request(STEPS, sigmas=LEVELS, **method) for _ in range(2))
        for step in range(STEPS):
            alike = twice(sample(arguments(step), 0))
            with server.batch([(exact, step), (recoded, step)]):
                first, second = denoiser(**alike)[0]
            apart = float((first - second).norm() / first.norm())
            if step == 5:  # the last of "#-%-#-", so that a call of some tokens reads two of all
                recoded.recode("int8", on_host=False)
            assert apart < 0.02
            assert (apart > 0) == (step == 6)


def test_rows_that_a_request_cannot_have() -> None:
    with serving(CASE.build()) as server:
        with pytest.raises(ConfigError, match="mask_image of a pipeline"):
            server.request(STEPS, speedup=2, rows="mask")
        with pytest.raises(ConfigError, match="rows= goes with a method"):
            server.request(STEPS, rows="context")
        with pytest.raises(ConfigError, match="rows= goes with methods that cache whole calls"):
            server.request(STEPS, config="uniform", site="stack", rows="context")
        assert server.request(STEPS, name="same").name == "same"
