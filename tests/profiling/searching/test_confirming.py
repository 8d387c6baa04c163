"""Confirming: a lucky schedule replaces nothing, a better one does."""

from typing import Any, cast

import pytest
import torch
from torch import Tensor

from diffcache.config import CacheConfig
from diffcache.profiling.recording.full_runs import FullRuns
from diffcache.profiling.searching.confirming import FEWEST, confirmed, is_better
from diffcache.recipes.replay import ReplayConfig
from diffcache.schedulers.schedule import Schedule

BEGUN = torch.linspace(30, 50, 20)


class Measured:
    """Stands where full runs are asked for: the PSNR of each sample is known by the schedule's name."""

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


def stands(rivals: dict[str, Tensor]) -> str:
    runs: Any = Measured(begun=BEGUN, **rivals)
    found = confirmed(cast(FullRuns, runs), named("begun"), [named(name) for name in rivals])
    assert runs.asked == ["begun", *rivals]
    return str(found.producer["name"])


def test_what_is_better_on_nearly_all_samples_replaces_what_the_search_began_with() -> None:
    assert stands({"better": BEGUN + 0.5}) == "better"


def test_a_few_samples_that_gain_much_do_not() -> None:
    lucky = BEGUN - 0.1
    lucky[:5] += 20
    assert lucky.mean() > BEGUN.mean()
    assert stands({"lucky": lucky}) == "begun"


def test_nor_do_many_that_gain_a_little_where_others_fall_apart() -> None:
    fragile = BEGUN + 0.1
    fragile[:3] -= 10
    assert fragile.median() > BEGUN.median()
    assert stands({"fragile": fragile}) == "begun"


def test_each_is_held_against_the_one_that_stands() -> None:
    assert stands({"good": BEGUN + 1, "less good": BEGUN + 0.5}) == "good"
    assert stands({"good": BEGUN + 1, "better": BEGUN + 2}) == "better"


@pytest.mark.parametrize(("won", "better"), [(14, False), (15, True)])  # of 20: chances of 5.8 % and 2.1 %
def test_chance_alone_wins_so_often(won: int, better: bool) -> None:
    gains = torch.full((20,), -0.1)
    gains[:won] = 1.0
    assert is_better(gains) is better


def test_fewer_samples_could_all_be_better_by_chance() -> None:
    assert is_better(torch.ones(FEWEST))
    assert not is_better(torch.ones(FEWEST - 1))


def test_ties_count_for_neither() -> None:
    assert is_better(torch.cat([torch.ones(5), torch.zeros(30)]))
    assert not is_better(torch.zeros(30))
