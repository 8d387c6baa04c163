"""Runs a denoiser of the zoo on some of its tokens, on inputs that stand still."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from zoo.denoiser_case import Case

from diffcache import accelerate, denoising_run, report, restore
from diffcache.config import RunFacts
from diffcache.recipes.uniform import UniformConfig
from diffcache.recipes.with_rows import WithRows
from diffcache.tokens.grids import changed_places
from diffcache.tokens.row_rule import FullCalls, RowRule, Sight, Source


@dataclass(frozen=True)
class Ran:
    """A run of two ticks on the same inputs: of all tokens, then of some."""

    marks: dict[str, str]
    reason: str
    error: float
    work: float
    cache_bytes: int

    @property
    def mark(self) -> str:
        return next(iter(self.marks.values()))[-1]


@dataclass(frozen=True, kw_only=True)
class AfterTheFirst(WithRows):
    """Every tick but the first computes some tokens."""

    def token_rows(self, run: RunFacts) -> RowRule:
        assert self.source is not None
        return RowRule(self.source, FullCalls())


def a_part(sight: Sight) -> Tensor:
    """Every third of packed tokens and of sounds, the first left out; of pictures and clips the upper half."""
    places = torch.zeros_like(changed_places(sight.latent, sight.latent))
    if places.ndim == 2 or places.shape[-2] == 1:
        places[..., 1::3] = True
    else:
        places[..., : max(places.shape[-2] // 2, 1), :] = True
    return places


def quarters(sight: Sight) -> Tensor:
    """The first quarter of the first sample's places, the second quarter of the second's, and so on."""
    places = torch.zeros_like(changed_places(sight.latent, sight.latent))
    quarter = max(places.shape[1] // 4, 1)
    for i, sample in enumerate(places):
        sample[i * quarter : (i + 1) * quarter] = True
    return places


def frozen(
    case: Case,
    *,
    batch: int = 1,
    branches: int = 1,
    source: Source = a_part,
    net: nn.Module | None = None,
    **options: Any,
) -> Ran:
    """Largest difference between the two ticks, as a fraction of the largest entry or of 1, and what the report says."""
    net = case.build() if net is None else net
    inputs = case.at(case.inputs(torch.Generator().manual_seed(0), batch), *case.time_values(4)[1:3])
    passes = [case.conditioning(inputs, which) for which in range(branches)]
    accelerate(net, AfterTheFirst(base=UniformConfig(interval=1, tail_steps=0, **options), source=source))
    try:
        with torch.no_grad(), denoising_run(net, 2) as run:
            outputs = []
            for tick in range(2):
                run.begin_step(tick)
                outputs.append([x for one in passes for x in case.output(net(**one))])
        done = report(net)
    finally:
        restore(net)
    marks = {branch: "".join(c.mark for c in done.calls if c.branch == branch) for branch in done.branches}
    last = done.calls[-1]
    pairs = zip(*outputs, strict=True)
    error = max(float((b - a).abs().max()) / max(float(a.abs().max()), 1.0) for a, b in pairs)
    held = done.cache_bytes + done.host_bytes
    return Ran(marks, last.reason or "", error, last.computed, held)
