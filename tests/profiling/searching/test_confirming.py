"""Confirming: a schedule that is better replaces the start of the search, and a lucky one does not."""

from typing import Any

import pytest
import torch
from torch import Tensor

from diffcache.config import CacheConfig
from diffcache.profiling.searching.confirming import FEWEST, confirmed, is_better
from diffcache.recipes.replay import ReplayConfig
from diffcache.schedulers.schedule import Schedule

START = torch.linspace(30, 50, 20)


class Measured:
    """Full runs that know the PSNR of each sample, by the name of the schedule."""

    def __init__(self, **psnrs: Tensor) -> None:
        self.known = psnrs
        self.asked: list[str] = []

    def psnrs(self, config: CacheConfig) -> Tensor:
        assert isinstance(config, ReplayConfig)
        self.asked.append(config.schedule.producer["name"])
        return self.known[self.asked[-1]]


def named(name: str) -> Schedule:
    return Schedule(
        models={}, table={"net": {"*": "#-"}}, predictor={"name": "hold"}, producer={"name": name}
    )


def winner(rivals: dict[str, Tensor]) -> str:
    runs: Any = Measured(start=START, **rivals)
    found = confirmed(runs, named("start"), [named(name) for name in rivals])
    assert runs.asked == ["start", *rivals]
    return str(found.producer["name"])


def test_a_schedule_that_is_better_on_nearly_all_samples_replaces_the_start() -> None:
    assert winner({"better": START + 0.5}) == "better"


def test_a_schedule_that_gains_much_on_a_few_samples_does_not_replace_it() -> None:
    lucky = START - 0.1
    lucky[:5] += 20
    assert lucky.mean() > START.mean()
    assert winner({"lucky": lucky}) == "start"


def test_a_schedule_that_gains_a_little_on_many_samples_and_loses_much_on_others_does_not_replace_it() -> (
    None
):
    fragile = START + 0.1
    fragile[:3] -= 10
    assert fragile.median() > START.median()
    assert winner({"fragile": fragile}) == "start"


def test_each_schedule_is_compared_with_the_best_so_far() -> None:
    assert winner({"good": START + 1, "less good": START + 0.5}) == "good"
    assert winner({"good": START + 1, "better": START + 2}) == "better"


@pytest.mark.parametrize(("won", "better"), [(14, False), (15, True)])  # of 20: chances of 5.8 % and 2.1 %
def test_a_schedule_must_win_more_often_than_chance(won: int, better: bool) -> None:
    gains = torch.full((20,), -0.1)
    gains[:won] = 1.0
    assert is_better(gains) is better


def test_too_few_samples_confirm_nothing() -> None:
    assert is_better(torch.ones(FEWEST))
    assert not is_better(torch.ones(FEWEST - 1))


def test_ties_do_not_count() -> None:
    assert is_better(torch.cat([torch.ones(5), torch.zeros(30)]))
    assert not is_better(torch.zeros(30))
