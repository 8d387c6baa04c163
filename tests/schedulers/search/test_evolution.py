"""Evolution: it finds a known front, breeds as it says, and resumes to the bit."""

import os
import signal
import subprocess
import sys
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from support.search_toy import Toy
from torch import Tensor

from diffcache.schedulers.errors import ConfigError, ScheduleError
from diffcache.schedulers.search.breeding import Breeding
from diffcache.schedulers.search.evolution import Evolution
from diffcache.schedulers.search.pareto import hypervolume
from diffcache.schedulers.search.screening import Screening
from diffcache.schedulers.search.seeds import every, sparse, tgate
from diffcache.schedulers.search.surrogate import ErrorModel


def ones_and_early_ones(tables: Tensor) -> Tensor:
    """A problem with a known front: the cost is the number of ones, the loss falls by 1 / (1 + gene) for each."""
    flat = tables.flatten(1).double()
    worth = 1 / (1 + torch.arange(flat.shape[1], dtype=torch.float64))
    return torch.stack([-(flat * worth).sum(1), flat.sum(1)], 1)


def run(search: Evolution, generations: int, toy: Toy | None = None) -> Evolution:
    for _ in search.generations(ones_and_early_ones if toy is None else toy.evaluate):
        if search.generation >= generations:
            break
    return search


def test_the_known_front_is_found() -> None:
    seeds = torch.stack([every(5, 3, n) for n in (1, 2, 5)])
    search = run(Evolution(seeds, population=32), 40)
    best = ones_and_early_ones(
        torch.stack([(torch.arange(15) < n).view(5, 3) for n in range(3, 16)])
    )  # as many early ones as are paid for
    assert torch.equal(search.front.scores, best.flip(0))


def test_nothing_is_evaluated_twice_and_the_first_tick_computes() -> None:
    search = run(Evolution(Toy().seeds(), population=12), 15)
    assert len(search.tables.unique(dim=0)) == len(search.tables)
    assert search.tables[:, 0].all()


def test_the_search_ends_when_every_table_is_known() -> None:
    search = Evolution(torch.stack([every(3, 1, 1), every(3, 1, 3)]), population=4)
    for _ in search.generations(ones_and_early_ones):
        pass
    assert len(search.tables) == 4


def test_genes_flip_at_the_rate_that_is_stated() -> None:
    parents = torch.ones(2, 100, 50, dtype=torch.bool)
    breeding = Breeding(mutation=0.03)
    children = breeding.children(parents, torch.zeros(2, 2), 40, set(), torch.Generator().manual_seed(0))
    assert float((~children[:, 1:]).double().mean()) == pytest.approx(0.03, rel=0.05)


def test_by_default_one_gene_of_a_child_flips() -> None:
    parents = torch.ones(2, 40, 10, dtype=torch.bool)
    flips = [
        int((~child).sum())
        for seed in range(100)
        for child in Breeding()._mate(parents[0], parents[1], torch.Generator().manual_seed(seed))
    ]
    assert sum(flips) / len(flips) == pytest.approx(1, abs=0.2)


def test_crossover_exchanges_two_stretches_of_time() -> None:
    parents = torch.stack([torch.ones(20, 2, dtype=torch.bool), every(20, 2, 20)])
    breeding = Breeding(crossover=1, mutation=0)
    first, second = breeding._mate(parents[0], parents[1], torch.Generator().manual_seed(3))
    flat = first.flatten()[2:]
    assert torch.equal(flat, ~second.flatten()[2:])
    assert 3 <= int((flat[1:] != flat[:-1]).sum()) <= 4


def test_one_seed_gives_one_search() -> None:
    toy = Toy()
    first, second = (run(Evolution(toy.seeds(), population=10, seed=5), 8, toy) for _ in range(2))
    other = run(Evolution(toy.seeds(), population=10, seed=6), 8, toy)
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
from support.search_toy import Toy
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


def test_a_search_that_was_killed_in_a_generation_resumes(tmp_path: Path) -> None:
    toy, path = Toy(), tmp_path / "search.safetensors"
    command = [sys.executable, "-c", KILLED, str(path), str(Path(__file__).parents[2])]
    killed = subprocess.run(command, env=os.environ, check=False)
    assert killed.returncode == -signal.SIGKILL
    resumed = Evolution.load(path)
    assert resumed.generation == 4
    whole = run(Evolution(toy.seeds(), population=10, seed=2), 8, toy)
    assert torch.equal(run(resumed, 8, toy).front.scores, whole.front.scores)


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "search.safetensors"
    run(Evolution(Toy().seeds()), 1).save(path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ScheduleError, match=r"search\.safetensors: not a checkpoint of a search, or damaged"):
        Evolution.load(path)


def test_screening_begins_with_a_single_seed() -> None:
    toy = Toy()
    search = Evolution(toy.uniform()[:1], children=4)
    for _ in search.generations(toy.evaluate, Screening(ErrorModel(toy.drifts, toy.prices), generations=2)):
        if search.generation == 3:
            break
    assert len(search.tables) > 1


@pytest.mark.parametrize("seed", range(3))
def test_screening_makes_more_of_as_many_candidates(seed: int) -> None:
    toy = Toy(seed=seed)
    screened = Evolution(toy.seeds(), population=24, children=8, seed=seed)
    for _ in screened.generations(toy.evaluate, Screening(ErrorModel(toy.drifts, toy.prices))):
        if len(screened.tables) > 200:
            break
    plain = run(Evolution(toy.seeds(), population=24, seed=seed), 10, toy)
    assert len(plain.tables) >= len(screened.tables)
    reference = plain.scores[: len(toy.seeds())].max(0).values
    gain = hypervolume(screened.front.scores, reference) / hypervolume(plain.front.scores, reference)
    assert gain > 1.05


def test_the_error_model_orders_tables_that_it_has_not_seen() -> None:
    toy = Toy()
    search = run(Evolution(toy.seeds(), population=24), 20, toy)
    model = ErrorModel(toy.drifts, toy.prices)
    model.fit(search.tables[:200], search.scores[:200])
    predicted, found = model.predict(search.tables[200:]), search.scores[200:]
    assert torch.corrcoef(torch.stack([predicted[:, 0], found[:, 0]]))[0, 1] > 0.9
    torch.testing.assert_close(predicted[:, 1], found[:, 1])


def test_the_error_model_does_not_depend_on_what_memory_held_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers are freed just before each solution, so that a work space that nobody fills is not zero."""
    solve, toy, predicted = torch.linalg.lstsq, Toy(), set()
    tables = run(Evolution(toy.seeds(), population=10), 2, toy).tables
    scores, model = toy.evaluate(tables), ErrorModel(toy.drifts, toy.prices)
    numbers = cycle([0] * 8 + [1] * 8 + [-1] * 8)

    def in_used_memory(*args: Any, **options: Any) -> Any:
        freed = [torch.full((2,), next(numbers), dtype=torch.int32) for _ in range(8)]
        del freed
        return solve(*args, **options)

    monkeypatch.setattr(torch.linalg, "lstsq", in_used_memory)
    for _ in range(150):
        model.fit(tables, scores)
        predicted.add(model.predict(tables).numpy().tobytes())
    assert len(predicted) == 1


def test_hand_made_seeds() -> None:
    assert every(6, 2, 3).nonzero()[:, 0].unique().tolist() == [0, 3]
    plan = tgate(10, ["self-attention", "cross-attention", "feed-forward"], gate=6, interval=3)
    assert plan[:, 0].nonzero().flatten().tolist() == [0, 1, 3, 6, 7, 8, 9]
    assert plan[:, 1].nonzero().flatten().tolist() == [0, 1, 2, 3, 4, 5]
    assert plan[:, 2].all()
    table = sparse(10, [1], 3, reused=3)
    assert (~table).nonzero().tolist() == [[3, 1], [5, 1], [8, 1]]
    assert int((~sparse(10, [0], 1, reused=9)).sum()) == 9


def test_what_cannot_be_done_is_said() -> None:
    good = torch.ones(2, 3, 2, dtype=torch.bool)
    with pytest.raises(ConfigError, match="each must compute all sites at the first tick"):
        Evolution(~good)
    with pytest.raises(ConfigError, match="population: 1 cannot breed"):
        Evolution(good, population=1)
    with pytest.raises(ConfigError, match="mutation: 2 is not between 0 and 1"):
        Breeding(mutation=2)
    with pytest.raises(ConfigError, match="crossover: -1 is not"):
        Breeding(crossover=-1)
    with pytest.raises(ConfigError, match="points: 0"):
        Breeding(points=0)
    with pytest.raises(ConfigError, match="scores: give a finite loss and cost for each of the 2 tables"):
        Evolution(good).tell(good, torch.tensor([[1.0, 2.0], [torch.nan, 1.0]]))
    with pytest.raises(ConfigError, match="interval: 0"):
        every(4, 2, 0)
    with pytest.raises(ConfigError, match="reused: 4 is not between 0 and 3"):
        sparse(4, [0], 2, 4)
