"""Probing: how much the picture minds what a place has drifted at a tick."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from diffcache.prediction.hindsight import DEGREE
from diffcache.profiling.recording.calling import Call
from diffcache.profiling.searching.space import Space
from diffcache.profiling.searching.trial import Trial, mean_square
from diffcache.schedulers.search.response import Response, coordinates

ROUNDS = 50
_TINY = 1e-12


def probed(pipe: Any, calls: Sequence[Call], space: Space, *, each_place: bool = True) -> Space:
    """The space with its response and sensitivity, measured by T - 1 + S rendered tables (T - 1 for a whole denoiser).

    A drift says how stale a feature is, not what becomes of it: later ticks mend early errors, and sites add more or less to the
    stream. So each tick is reused alone with all places, and each place alone at every second tick. The response is
    how the first of these move the pictures. Sensitivity is the product of one factor for each place and one for
    each tick that explains all these errors, if they add up.

    Args:
        pipe: a pipeline; it is plain afterwards.
        calls: what is rendered.
        space: its own sensitivity and response are set aside.
        each_place: False leaves the sensitivity out, and its S tables: what all places share needs the response alone.
    """
    plain = replace(space, sensitivity=None, response=None)
    squared = _one_tick_drifts(plain)
    trial = Trial(pipe, calls, plain, mean_square)
    moves = _moves(trial, _tick_probes(plain))
    by_tick = moves.square().mean(1)
    response = Response(
        coordinates(_alike(moves, len(trial.runs.pictures))),
        plain.drifts.mean(0),
        order=plain.predictor.get("order", 0),
        hindsight=DEGREE if plain.predictor.get("hindsight") else 0,
    )
    if not each_place:
        return replace(plain, response=response)
    if len(plain.places) == 1:
        sensitivity = (by_tick / (squared[0] + _TINY)).unsqueeze(0)
    else:
        sensitivity = factors(squared, by_tick, trial(_site_probes(plain))[:, 0])
    return replace(plain, sensitivity=sensitivity, response=response)


def _moves(trial: Trial, tables: Tensor) -> Tensor:
    """[T, D]: what each tick's table moves the pictures by; nothing for tick 0."""
    full = trial.runs.pictures
    probes = [trial.pictures(table) - full for table in tqdm(tables, desc="probes", leave=False)]
    return torch.stack([torch.zeros_like(full), *probes]).flatten(1).double()


def _alike(moves: Tensor, samples: int) -> Tensor:
    """The same, with each sample weighed by its own mean error, so that the restless ones do not decide alone."""
    by_sample = moves.view(len(moves), samples, -1)
    size = by_sample.square().mean((0, 2), keepdim=True).sqrt()
    return (by_sample / (size + _TINY)).flatten(1)


def factors(squared: Tensor, by_tick: Tensor, by_site: Tensor) -> Tensor:
    """u_s v_t, float64 [S, T], with sum_s u_s v_t d[s, t] = by_tick[t] for each tick, and for each site
    sum of u_s v_t d[s, t] over odd t = by_site[s], as nearly as both can be (alternating, the sites last).

    Args:
        squared: d, [S, T]: squared drift over one tick.
        by_tick: [T], error when all places reuse that tick alone; nothing at tick 0.
        by_site: [S], error when that place alone reuses every odd tick.
    """
    u = torch.ones(len(squared), dtype=torch.float64)
    for _ in range(ROUNDS):
        v = by_tick / (u @ squared + _TINY)
        u = by_site / (squared[:, 1::2] @ v[1::2] + _TINY)
    return u.unsqueeze(1) * v


def _one_tick_drifts(space: Space) -> Tensor:
    """[S, T]: squared drift since the tick before; nothing at tick 0."""
    drift = torch.diagonal(space.drifts, offset=1, dim1=1, dim2=2).square()
    return torch.cat([torch.zeros_like(drift[:, :1]), drift], 1)


def _tick_probes(space: Space) -> Tensor:
    """[T - 1, T, S]: all computed but one tick."""
    reused = torch.eye(space.num_ticks, dtype=torch.bool)[1:]
    return ~reused.unsqueeze(2).expand(-1, -1, len(space.places))


def _site_probes(space: Space) -> Tensor:
    """[S, T, S]: all computed but one place at every odd tick."""
    odd = torch.arange(space.num_ticks) % 2 == 1
    alone = torch.eye(len(space.places), dtype=torch.bool)
    return ~(odd[None, :, None] & alone.unsqueeze(1))
