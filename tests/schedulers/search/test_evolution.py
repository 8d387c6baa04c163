"""Evolution: it finds a known front, and resumes to the bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.searches.toy import Toy, evolved
from torch import Tensor

from diffcache.schedulers.errors import ConfigError, ScheduleError
from diffcache.schedulers.search.breeding import Breeding
from diffcache.schedulers.search.evolution import Evolution
from diffcache.schedulers.search.screening import Screening
from diffcache.schedulers.search.seeds import every
from diffcache.schedulers.search.surrogate import ErrorModel


def ones_and_early_ones(tables: Tensor) -> Tensor:
    """A problem with a known front: the cost is the number of ones, the loss falls by 1 / (1 + gene) for each."""
    flat = tables.flatten(1).double()
    worth = 1 / (1 + torch.arange(flat.shape[1], dtype=torch.float64))
    return torch.stack([-(flat * worth).sum(1), flat.sum(1)], 1)


def test_the_known_front_is_found() -> None:
    seeds = torch.stack([every(5, 3, n) for n in (1, 2, 5)])
    search = evolved(Evolution(seeds, population=32), 40, ones_and_early_ones)
    best = ones_and_early_ones(
        torch.stack([(torch.arange(15) < n).view(5, 3) for n in range(3, 16)])
    )  # as many early ones as are paid for
    assert torch.equal(search.front.scores, best.flip(0))


def test_no_table_is_evaluated_twice_and_all_compute_the_first_tick() -> None:
    search = evolved(Evolution(Toy().seeds(), population=12), 15, ones_and_early_ones)
    assert len(search.tables.unique(dim=0)) == len(search.tables)
    assert search.tables[:, 0].all()


def test_the_search_ends_when_every_table_is_known() -> None:
    search = Evolution(torch.stack([every(3, 1, 1), every(3, 1, 3)]), population=4)
    for _ in search.generations(ones_and_early_ones):
        pass
    assert len(search.tables) == 4


def test_a_search_is_reproducible_from_its_seed() -> None:
    toy = Toy()
    first, second = (
        evolved(Evolution(toy.seeds(), population=10, seed=5), 8, toy.evaluate) for _ in range(2)
    )
    other = evolved(Evolution(toy.seeds(), population=10, seed=6), 8, toy.evaluate)
    assert torch.equal(first.tables, second.tables)
    assert torch.equal(first.scores, second.scores)
    assert not torch.equal(first.tables, other.tables)


@pytest.mark.parametrize("screened", [False, True])
def test_a_search_resumes_to_the_bit(tmp_path: Path, screened: bool) -> None:
    toy = Toy()
    screen = Screening(ErrorModel(toy.drifts, toy.prices), generations=3) if screened else None
    whole = Evolution(toy.seeds(), population=10, breeding=Breeding(mutation=0.02), seed=1)
    for search in whole.generations(toy.evaluate, screen):
        if search.generation == 3:
            search.save(tmp_path / "search.safetensors")
        if search.generation == 7:
            break
    resumed = Evolution.load(tmp_path / "search.safetensors")
    assert resumed.generation == 3
    for search in resumed.generations(toy.evaluate, screen):
        if search.generation == 7:
            break
    assert torch.equal(whole.tables, resumed.tables)
    assert torch.equal(whole.scores, resumed.scores)


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from support.searches.toy import Toy
from diffcache.schedulers.search.evolution import Evolution

toy, path = Toy(), Path(sys.argv[1])
search = Evolution(toy.seeds(), population=10, seed=2)

def evaluate(tables):
    if search.generation == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return toy.evaluate(tables)

for _ in search.generations(evaluate):
    search.save(path)
"""


def test_a_search_that_was_killed_in_a_generation_ends_with_the_same_front(tmp_path: Path) -> None:
    toy, path = Toy(), tmp_path / "search.safetensors"
    command = [sys.executable, "-c", KILLED, str(path), str(Path(__file__).parents[2])]
    killed = subprocess.run(command, env=os.environ, check=False)
    assert killed.returncode == -signal.SIGKILL
    resumed = Evolution.load(path)
    assert resumed.generation == 4
    whole = evolved(Evolution(toy.seeds(), population=10, seed=2), 8, toy.evaluate)
    assert torch.equal(evolved(resumed, 8, toy.evaluate).front.scores, whole.front.scores)


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "search.safetensors"
    evolved(Evolution(Toy().seeds()), 1, ones_and_early_ones).save(path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ScheduleError, match=r"search\.safetensors: not a checkpoint of a search, or damaged"):
        Evolution.load(path)


def test_a_search_without_good_seeds_or_a_population_is_refused() -> None:
    good = torch.ones(2, 3, 2, dtype=torch.bool)
    with pytest.raises(ConfigError, match="each must compute all sites at the first tick"):
        Evolution(~good)
    with pytest.raises(ConfigError, match="population: 1 cannot breed"):
        Evolution(good, population=1)


def test_scores_that_are_not_finite_are_refused() -> None:
    good = torch.ones(2, 3, 2, dtype=torch.bool)
    with pytest.raises(ConfigError, match="scores: give a finite loss and cost for each of the 2 tables"):
        Evolution(good).tell(good, torch.tensor([[1.0, 2.0], [torch.nan, 1.0]]))
