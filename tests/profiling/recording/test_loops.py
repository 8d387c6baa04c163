"""Hand-written loops are searched like pipelines: here the policy testbed, for each sub-layer of its decoder."""

import pytest
import torch

from diffcache import Schedule, accelerate, report, restore
from diffcache.evals.testbeds.diffusion_policy import PolicyTransformer
from diffcache.evals.testbeds.policy_loop import policy_calls, policy_loop
from diffcache.profiling.recording.calling import Call
from diffcache.profiling.recording.loops import Loop
from diffcache.profiling.recording.pictures import rewound
from diffcache.profiling.recording.record import record
from diffcache.profiling.searching.dynamic_programming import VARIANTS, dynamic_programming
from diffcache.profiling.searching.probing import probed
from diffcache.profiling.searching.scoring import Scorer, mean_square, wall_time
from diffcache.profiling.searching.space import Space
from diffcache.schedulers.search.seeds import every

STEPS = 8


@pytest.fixture(scope="module")
def searched() -> tuple[Loop, list[Call], Space]:
    loop, calls = policy_loop(PolicyTransformer.load()), policy_calls(0, 4, STEPS)
    return loop, calls, Space(record(loop, calls, sites="sub-layer"))


def test_every_sub_layer_is_a_site(searched: tuple[Loop, list[Call], Space]) -> None:
    _, _, space = searched
    kinds = ["self-attention", "cross-attention", "feed-forward"]
    assert list(space.kinds) == kinds * 4
    assert space.sites[2] == "denoiser.decoder.layers.0.linear1..decoder.layers.0.linear2"


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_a_schedule_of_each_variant_replays_as_it_was_found(
    searched: tuple[Loop, list[Call], Space], variant: str, tmp_path: object
) -> None:
    loop, calls, space = searched
    schedule = dynamic_programming(space, 0.6, variant)
    schedule = Schedule.from_pretrained(schedule.save_pretrained(str(tmp_path)))
    accelerate(loop.denoiser, schedule)
    loop(**rewound(calls[0]))
    told = report(loop.denoiser)
    restore(loop.denoiser)
    assert told.compute_fraction == pytest.approx(schedule.measured["compute_fraction"], abs=1e-3)
    assert told.compute_fraction <= 0.6


def test_bac_repairs_feed_forwards_for_deeper_ones(searched: tuple[Loop, list[Call], Space]) -> None:
    _, _, space = searched
    decisions = dynamic_programming(space, 0.6, "bac").decisions[:, 0]
    forwards = [site for site, kind in enumerate(space.kinds) if kind == "feed-forward"]
    counts = decisions.sum(0)
    deeper = decisions[:, forwards[1:]].any(1)
    assert bool((decisions[:, forwards[0]] >= deeper).all())
    assert counts[forwards[0]] >= counts[forwards[-1]]


def test_the_response_predicts_the_error_of_single_reused_ticks(
    searched: tuple[Loop, list[Call], Space],
) -> None:
    loop, _, space = searched
    calls = policy_calls(1, 1, STEPS)
    response = probed(loop, calls, space, each_site=False).response
    assert response is not None
    left_out = [[t for t in range(STEPS) if t != reused] for reused in range(1, STEPS)]
    tables = torch.ones(len(left_out), STEPS, len(space.sites), dtype=torch.bool)
    for table, ticks in zip(tables, left_out, strict=True):
        table[:] = torch.isin(torch.arange(STEPS), torch.tensor(ticks)).unsqueeze(1)
    measured = Scorer(loop, calls, space, mean_square)(tables)[:, 0]
    predicted = torch.tensor([response.error(ticks) for ticks in left_out], dtype=torch.float64)
    torch.testing.assert_close(predicted / predicted.sum(), measured / measured.sum())


def test_wall_time_may_be_the_cost(searched: tuple[Loop, list[Call], Space]) -> None:
    loop, calls, space = searched
    scores = Scorer(loop, calls, space, cost=wall_time)(every(STEPS, len(space.sites), 2).unsqueeze(0))
    assert scores[0, 1] > 0
