"""RegionE: the ticks of the published schedules, the region by hand, and what stays as it was outside of it."""

from __future__ import annotations

import math

import pytest
import torch

from diffcache.config import RunFacts
from diffcache.recipes.regione import RegionEConfig
from diffcache.schedulers.steps import Decision, Step
from diffcache.tokens.region import edited_tokens, smoothed
from diffcache.tokens.row_rule import Region, Sight

FLUX, QWEN = "FluxTransformer2DModel", "QwenImageTransformer2DModel"
MU = 1.15


def sigmas(num_steps: int = 28) -> tuple[float, ...]:
    """Those of the Flux pipelines at 1024 pixels."""
    return tuple(
        math.exp(MU) / (math.exp(MU) + 1 / s - 1)
        for s in torch.linspace(1, 1 / num_steps, num_steps).tolist()
    )


def pattern(config: RegionEConfig, denoiser: str = FLUX, num_steps: int = 28) -> str:
    """F computes all tokens, r the region, . nothing."""
    run = RunFacts(denoiser, num_ticks=num_steps, sigmas=sigmas(num_steps))
    scheduler, full = config.scheduler(run), config.token_rows(run).full
    marks = ""
    for tick in range(num_steps):
        forced = config.guards(run).forces_compute(Step(tick, num_steps, "0"), _stored(tick))
        computes = forced or scheduler.decide(Step(tick, num_steps, "0"), None) is Decision.COMPUTE
        marks += ("F" if full.asks(tick, num_steps, 0, 0) else "r") if computes else "."
    return marks


def _stored(tick: int):
    from diffcache.schedulers.guards import History

    return History(tick - 1, None)


@pytest.mark.parametrize(
    ("options", "golden"),
    [
        ({}, "FFFFFFr.r..r.r.F.......r..FF"),
        ({"delta": 0.01}, "FFFFFFr.r..r.r.F...r.r.r.rFF"),
        ({"delta": 0.02}, "FFFFFFr.r..r.r.F.....r..r.FF"),
    ],
)
def test_the_ticks_of_kontext_are_those_of_the_paper(options, golden):
    assert pattern(RegionEConfig(**options)) == golden


def test_delta_zero_computes_the_region_at_every_tick():
    assert pattern(RegionEConfig(delta=0)) == "FFFFFF" + "r" * 9 + "F" + "r" * 10 + "FF"


@pytest.mark.parametrize(("num_steps", "golden"), [(4, "FrFr"), (8, "FFrrFrrF")])
def test_counts_of_ticks_are_scaled_to_shorter_runs(num_steps, golden):
    assert pattern(RegionEConfig(delta=0), num_steps=num_steps) == golden


def test_published_thresholds_go_by_the_denoiser():
    assert RegionEConfig().token_rows(RunFacts(FLUX)).source == Region(0.93)
    assert RegionEConfig().token_rows(RunFacts(QWEN)).source == Region(0.80)
    assert RegionEConfig(eta=0.5).token_rows(RunFacts(QWEN)).source == Region(0.5)


def test_erosion_and_dilation_by_hand():
    edited = torch.zeros(7, 7, dtype=torch.bool)
    edited[2:5, 2:5] = True  # a block of nine, of which the cross leaves the middle
    edited[0, 6] = True  # a single token, which goes
    expected = torch.zeros(7, 7, dtype=torch.bool)
    expected[1:6, 1:6] = True
    assert torch.equal(smoothed(edited.view(1, -1), 7, 7).view(7, 7), expected)


def test_the_border_counts_as_unedited():
    edited = torch.ones(1, 9, dtype=torch.bool)
    middle_grown = torch.ones(1, 9, dtype=torch.bool)
    assert torch.equal(smoothed(edited, 3, 3), middle_grown)  # only the middle is left, and grows by two
    assert not smoothed(torch.ones(1, 4, dtype=torch.bool), 2, 2).any()


def test_edited_tokens_are_those_that_turn_away_from_the_reference():
    reference = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]])
    angles = [0.0, 0.5, 2.0]
    clean = torch.tensor([[[math.cos(a), math.sin(a)] for a in angles]])
    assert edited_tokens(clean, reference, 0.93).tolist() == [[False, True, True]]
    assert edited_tokens(clean, reference, 0.0).tolist() == [[False, False, True]]


def test_the_region_follows_from_two_ticks_by_hand():
    generator = torch.Generator().manual_seed(0)
    reference = torch.randn(1, 64, 8, generator=generator)
    clean = reference.clone()
    clean.view(1, 8, 8, 8)[:, 2:7, 3:8] *= -1  # rows 2 to 6 and columns 3 to 7 are edited
    noise = torch.randn(1, 64, 8, generator=generator)
    at = [torch.cat([(1 - s) * clean + s * noise, reference], 1) for s in (0.8, 0.7)]
    places = Region(0.93)(Sight(at[1], at[0], 0.7, 0.8, grid=(1, 8, 8)))
    # columns 4 to 6 and rows 3 to 5 are left by the cross, and grow by two, also over the border at column 7
    expected = torch.zeros(8, 8, dtype=torch.bool)
    expected[1:8, 2:8] = True
    assert torch.equal(places[0, :64].view(8, 8), expected)
    assert not places[0, 64:].any()


def test_without_a_reference_of_the_same_size_all_tokens_that_move_are_computed():
    x, y = torch.zeros(1, 10, 4), torch.zeros(1, 10, 4)
    y[:, :7] = 1
    assert Region()(Sight(y, x, 0.7, 0.8)).tolist() == [[True] * 7 + [False] * 3]
