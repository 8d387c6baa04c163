"""Frontiers: settings are chosen on one half, and what they give at a budget is what a mixture of them gives."""

from typing import Any

import numpy as np
import pytest
import torch

from diffcache.evals.race import ours
from diffcache.evals.race.frontier import Pair, nearest_below, pair_for, worth_choosing
from diffcache.evals.race.result import RaceResult
from diffcache.evals.race.row import ROUNDING, Reference, Row, changed, psnr_in_8_bits
from diffcache.evals.race.run import pair_on, to_full
from diffcache.evals.race.standings import best_of, own, standing
from diffcache.evals.tables.race import race_table, summary_table


def row(
    compute: float, psnr: list[float], name: str = "p: m", part: str = "choose", knob: float = 0.0
) -> Row:
    same = [0.0] * len(psnr)
    options: dict[str, Any] = {"knob": knob or compute}
    return Row(
        contender=name, options=options, part=part, compute=compute, psnr=psnr, truth=[], changed=same,
        ssim=same, loop_time=compute,
    )  # fmt: skip


def test_a_pair_gives_what_a_mixture_of_its_settings_gives() -> None:
    pair = Pair(row(0.4, [30, 32]), row(0.6, [40, 46]))
    assert pair.share(0.5) == pytest.approx(0.5)
    assert pair.values(0.45, to_full) == pytest.approx([32.5, 35.5])
    assert pair.compute(0.45) == pytest.approx(0.45)
    assert pair.share(0.9) == 1
    assert pair.share(0.1) == 0  # it computes more than is allowed, and is never chosen for that


def test_the_best_pair_within_reach_is_chosen() -> None:
    rows = [row(0.3, [20]), row(0.45, [30]), row(0.49, [31]), row(0.55, [34]), row(0.7, [90]), row(0.1, [80])]
    pair = pair_for(rows, 0.5, to_full)
    assert pair is not None
    assert (pair.low.compute, pair.high.compute) == (0.45, 0.55)
    assert pair_for(rows, 0.9, to_full) is None
    assert pair_for([row(0.6, [40])], 0.5, to_full) is None  # nothing computes as little
    alone = pair_for([row(0.504, [40])], 0.5, to_full)
    assert alone is not None
    assert alone.low is alone.high
    assert [one.compute for one in worth_choosing(rows, 0.5, to_full)] == [0.45, 0.55, 0.49]
    below = nearest_below(rows, 0.48)
    assert below is not None
    assert below.low.compute == 0.45
    assert nearest_below(rows, 0.05) is None


def test_pictures_are_compared_in_8_bits() -> None:
    picture = torch.full((2, 3, 16, 16), 100 / 255)
    other = picture.clone()
    other[1, 0, 0, 0] = 101 / 255
    almost = picture + 0.3 / 255
    assert psnr_in_8_bits(almost, picture) == [ROUNDING, ROUNDING]
    assert psnr_in_8_bits(picture + 4 / 255, picture) == pytest.approx([36.09, 36.09], abs=0.01)
    assert changed(other, picture).tolist() == [0, 1 / 256]
    figures = Reference(picture, picture[:1] + 4 / 255).figures(picture)
    assert len(figures["truth"]) == 1
    assert figures["ssim"] == [1, 1]


def raced(rows: list[Row]) -> RaceResult:
    return RaceResult({"commit": "a"}, "sd3", 50, rows)


def test_settings_are_chosen_on_one_half_and_scored_on_the_other() -> None:
    name = "cache-dit: m"
    rows = [row(0.5, [40.0], name, "try"), row(0.49, [30.0], name, "try")]
    rows += [row(0.5, [41.0], name), row(0.49, [43.0], name)]
    rows += [row(0.5, [50.0], name, "score"), row(0.49, [20.0], name, "score")]
    pair = pair_on(raced(rows), name, 2)
    assert pair is not None
    assert pair.low.psnr == [20.0]  # the better one of the half that was chosen on
    assert pair_on(raced(rows[:-1]), name, 2) is None  # not scored yet


def test_who_has_nothing_to_choose_gets_the_ticks_that_the_budget_allows() -> None:
    rows = [row(0.5, [40.0], own(ours.SPEEDUP), "score"), row(0.66, [50.0], own(ours.SPEEDUP), "score")]
    found = standing(raced(rows), own(ours.SPEEDUP), 1.5)
    assert found is not None
    assert (found.db, found.compute) == (50.0, 0.66)
    assert standing(raced(rows), own(ours.SPEEDUP), 3) is None


def test_differences_are_paired() -> None:
    noisy = np.random.default_rng(2).normal(40, 10, 16)
    rows = [
        row(0.5, list(noisy), own(ours.EVEN), "score"),
        row(0.5, list(noisy - 1), own(ours.SPEEDUP), "score"),
        row(0.5, list(noisy - 2), own(ours.TUNED), "score"),
    ]
    result = raced(rows)
    one, other = (standing(result, own(name), 2) for name in (ours.EVEN, ours.SPEEDUP))
    assert one is not None
    assert other is not None
    found = one.ahead_of(other)
    assert (found.mean, found.low, found.high) == pytest.approx((1, 1, 1))
    assert str(other.ahead_of(one)) == "-1.0 [-1.0, -1.0]"


def test_the_best_of_several_is_chosen_on_the_choosing_half() -> None:
    rows = []
    for name, chosen, scored in (("cache-dit: a", 40.0, 30.0), ("cache-dit: b", 39.0, 50.0)):
        rows += [
            row(0.5, [value], name, part)
            for part, value in (("try", chosen), ("choose", chosen), ("score", scored))
        ]
    best = best_of(raced(rows), ["cache-dit: a", "cache-dit: b"], 2)
    assert best is not None
    assert (best.contender, best.db) == ("cache-dit: a", 30.0)


def test_tables_say_who_loses() -> None:
    plain = {"solver": "UniPC", "steps": 25}
    rows = [
        Row(contender=ours.FEWER, options=plain, part=part, compute=0.5, psnr=[45.0, 47.0], truth=[], changed=[0, 0],
            ssim=[1, 1], loop_time=0.5)
        for part in ("try", "choose", "score")
    ]  # fmt: skip
    rows.append(row(0.5, [44.0, 44.0], own(ours.SPEEDUP), "score"))
    summary, full = summary_table([raced(rows)]), race_table([raced(rows)])
    assert "| sd3, 50 steps | 2x | 46.0 | 44.0 | -2.0 [-3.0, -1.0] |" in summary
    assert "`tune`" not in summary  # nothing of it was measured
    assert "| sd3, 50 steps | 2x | 46.0 UniPC | 44.0 |" in full
