"""Breeding: children mutate and cross as they should."""

from __future__ import annotations

import pytest
import torch

from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.search.breeding import Breeding
from diffcache.schedulers.search.seeds import every


def test_genes_flip_at_the_given_rate() -> None:
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


def test_probabilities_and_cuts_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match="mutation: 2 is not between 0 and 1"):
        Breeding(mutation=2)
    with pytest.raises(ConfigError, match="crossover: -1 is not"):
        Breeding(crossover=-1)
    with pytest.raises(ConfigError, match="points: 0"):
        Breeding(points=0)
