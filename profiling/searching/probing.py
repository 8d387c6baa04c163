"""Probing: measures how much the pictures change when single ticks and single sites are reused."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from diffcache.prediction.predictors import DEGREE
from diffcache.profiling.recording.calling import Call
from diffcache.profiling.searching.scoring import Scorer, mean_square
from diffcache.profiling.searching.space import Space
from diffcache.schedulers.search.response import PictureResponse, coordinates

ROUNDS = 50
"""Alternations of the factorisation. It changes little after a few."""

_TINY = 1e-12
"""Added to divisors."""


def probed(pipe: Any, calls: Sequence[Call], space: Space, *, each_site: bool = True) -> Space:
    """The space with its response and sensitivity, for which T - 1 + S tables are rendered (T - 1 for a whole denoiser).

    A drift says how far a feature has moved, but not what this does to the pictures: later ticks correct early errors, and sites
    contribute more or less to the stream. So each tick is reused alone by all sites, and each site alone reuses every second
    tick. The response is how the tables of single ticks move the pictures. The sensitivity is the product of one factor for
    each site and one for each tick that explains all measured errors, assuming that they add up.

    Args:
        pipe: a pipeline; it is plain afterwards.
        calls: keyword arguments of the calls that are rendered.
        space: its own sensitivity and response are ignored.
        each_site: False: without the sensitivity and its S tables. A schedule that all sites share needs the response only.
    """
    plain = replace(space, sensitivity=None, response=None)
    squared = _one_tick_drifts(plain)
    scorer = Scorer(pipe, calls, plain, mean_square)
    moves = _moves(scorer, _tick_probes(plain))
    by_tick = moves.square().mean(1)
    response = PictureResponse(
        coordinates(_weighed(moves, len(scorer.runs.pictures))),
        plain.drifts.mean(0),
        order=plain.predictor.get("order", 0),
        hindsight=DEGREE if plain.predictor.get("hindsight") else 0,
    )
    if not each_site:
        return replace(plain, response=response)
    if len(plain.sites) == 1:
        sensitivity = (by_tick / (squared[0] + _TINY)).unsqueeze(0)
    else:
        sensitivity = factors(squared, by_tick, scorer(_site_probes(plain))[:, 0])
    return replace(plain, sensitivity=sensitivity, response=response)


def _moves(scorer: Scorer, tables: Tensor) -> Tensor:
    """[T, D]: by how much the table of each tick moves the pictures; zeros for tick 0."""
    full = scorer.runs.pictures
    probes = [scorer.pictures(table) - full for table in tables]
    return torch.stack([torch.zeros_like(full), *probes]).flatten(1).double()


def _weighed(moves: Tensor, samples: int) -> Tensor:
    """The moves over each sample's own mean error, so that samples with large errors do not outweigh the others."""
    by_sample = moves.view(len(moves), samples, -1)
    size = by_sample.square().mean((0, 2), keepdim=True).sqrt()
    return (by_sample / (size + _TINY)).flatten(1)


def factors(squared: Tensor, by_tick: Tensor, by_site: Tensor) -> Tensor:
    """u_s v_t, float64 [S, T], that explains the errors as well as possible.

    For each tick, sum_s u_s v_t d[s, t] = by_tick[t]; for each site, the sum of u_s v_t d[s, t] over odd t = by_site[s]. The
    two are solved in alternation, the sites last.

    Args:
        squared: d, [S, T]: squared drift over one tick.
        by_tick: [T], error when all sites reuse that tick alone; 0 at tick 0.
        by_site: [S], error when that site alone reuses every odd tick.
    """
    u = torch.ones(len(squared), dtype=torch.float64)
    for _ in range(ROUNDS):
        v = by_tick / (u @ squared + _TINY)
        u = by_site / (squared[:, 1::2] @ v[1::2] + _TINY)
    return u.unsqueeze(1) * v


def _one_tick_drifts(space: Space) -> Tensor:
    """[S, T]: squared drift since the tick before; 0 at tick 0."""
    drift = torch.diagonal(space.drifts, offset=1, dim1=1, dim2=2).square()
    return torch.cat([torch.zeros_like(drift[:, :1]), drift], 1)


def _tick_probes(space: Space) -> Tensor:
    """[T - 1, T, S]: tables that reuse one tick and compute all others."""
    reused = torch.eye(space.num_ticks, dtype=torch.bool)[1:]
    return ~reused.unsqueeze(2).expand(-1, -1, len(space.sites))


def _site_probes(space: Space) -> Tensor:
    """[S, T, S]: tables in which one site reuses every odd tick and all else is computed."""
    odd = torch.arange(space.num_ticks) % 2 == 1
    alone = torch.eye(len(space.sites), dtype=torch.bool)
    return ~(odd[None, :, None] & alone.unsqueeze(1))
