"""ScaleKV on the next-scale testbed: bytes of keys and values against PSNR to the pictures with all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from diffusers import AutoencoderKLWan
from torch import Tensor

from diffcache.evals.harness.intervals import mean_with_interval
from diffcache.evals.metrics.fidelity import psnr
from diffcache.evals.testbeds import procedural, zoo
from diffcache.evals.testbeds.next_scale_model import NextScale
from diffcache.evals.testbeds.shape_classifier import ShapeColourClassifier
from diffcache.rollouts.scale_kv import ScaleKV, drafters_of, relative_selectivity
from diffcache.rollouts.scales import layer_selectivity, scales

BUDGETS = (6, 12, 24, 48)
"""Tokens that a layer keeps, mean over the layers; all scales have 194."""
DRAFTERS = 3
CALIBRATION = 10
"""Samples that drafters are chosen from, as published; others are scored."""
FEW = 6
"""Tokens that a layer keeps whose harm is measured, while all others keep everything."""


@dataclass(frozen=True)
class OneLayer(ScaleKV):
    """Cuts one layer down, and leaves the others as they are.

    Attributes:
        only: its index.
    """

    only: int = 0

    def tokens(self, layer: int, layers: int, scale: int) -> int:
        return FEW if layer == self.only else 10**6


@dataclass(frozen=True)
class RandomTokens(ScaleKV):
    """The control: the same budgets, and tokens at random."""

    def relevance(self, queries: Tensor, keys: Tensor, scale: float) -> Tensor:
        generator = torch.Generator().manual_seed(keys.shape[2])
        return torch.rand(keys.shape[:-1], generator=generator)


@dataclass(frozen=True)
class NewestTokens(ScaleKV):
    """The control: the same budgets, and the newest tokens."""

    def relevance(self, queries: Tensor, keys: Tensor, scale: float) -> Tensor:
        return torch.arange(keys.shape[2]).float().expand(keys.shape[:-1])


def measured(samples: int) -> dict[str, Any]:
    """What the layers are like, and a row for each policy and budget."""
    model = NextScale.load()
    scores = relative_selectivity(layer_selectivity(model, lambda: _drawn(model, CALIBRATION, 1)))
    harms = _harms(model, len(scores))
    drafters = drafters_of(scores, DRAFTERS)
    harmed = drafters_of([-harm for harm in harms], DRAFTERS)
    full = _drawn(model, samples, 0)
    with scales(model, ScaleKV(budget=10**6)) as caches:
        _drawn(model, samples, 0)
    all_bytes = caches.kept_bytes[-1] // samples
    rows: list[dict[str, Any]] = [
        {"policy": "everything", "budget": None, "bytes": all_bytes, "accuracy": _accuracy(full)}
    ]
    for budget in BUDGETS:
        uniform = None
        for name, policy in _policies(budget, drafters, harmed).items():
            with scales(model, policy) as caches:
                drawn = _drawn(model, samples, 0)
            quality = _psnr(drawn, full)
            uniform = quality if uniform is None else uniform
            figures = {"bytes": caches.kept_bytes[-1] // samples, "accuracy": _accuracy(drawn)}
            compared = {"psnr": _interval(quality), "over_uniform": _interval(quality - uniform)}
            rows.append({"policy": name, "budget": budget, **figures, **compared})
    layers = {"selectivity": scores, "harm": harms, "drafters": drafters, "most_harmed": harmed}
    return {"layers": layers, "rows": rows}


def _policies(budget: int, drafters: tuple[int, ...], harmed: tuple[int, ...]) -> dict[str, ScaleKV]:
    return {
        "uniform budgets": ScaleKV(budget=budget),
        "scale-kv": ScaleKV(budget=budget, drafters=drafters),
        "scale-kv, refiners 90 %": ScaleKV(budget=budget, drafters=drafters, refiner_share=0.9, decay=0.0),
        "scale-kv, drafters by harm": ScaleKV(budget=budget, drafters=harmed),
        "random tokens (control)": RandomTokens(budget=budget, drafters=drafters, pool=1),
        "random tokens, uniform budgets (control)": RandomTokens(budget=budget, pool=1),
        "newest tokens (control)": NewestTokens(budget=budget, drafters=drafters, pool=1),
    }


def _harms(model: NextScale, layers: int) -> list[float]:
    """By how much pictures differ, root of the mean square, when one layer alone is cut down; on the calibration's samples."""
    full, harms = _decoded(_drawn(model, CALIBRATION, 1)), []
    for layer in range(layers):
        with scales(model, OneLayer(only=layer)):
            cut = _decoded(_drawn(model, CALIBRATION, 1))
        harms.append(round(float((cut - full).square().mean().sqrt()), 4))
    return harms


def _interval(values: Tensor) -> list[float]:
    """A mean over samples, and the ends of its bootstrap interval of 95 %."""
    return [round(value, 2) for value in mean_with_interval(values)]


def _drawn(model: NextScale, samples: int, seed: int) -> Tensor:
    labels = torch.arange(samples) * 7 % procedural.NUM_CLASSES
    with torch.no_grad():
        return model.sample(labels, torch.Generator().manual_seed(seed))


def _accuracy(latents: Tensor) -> float:
    labels = torch.arange(len(latents)) * 7 % procedural.NUM_CLASSES
    seen = ShapeColourClassifier.load().predict(_decoded(latents))
    return round(float((seen == labels).float().mean()), 3)


def _psnr(latents: Tensor, full: Tensor) -> Tensor:
    """Of each picture to the one with all keys and values, [n]; equal ones count as 60 dB."""
    return psnr(_decoded(latents), _decoded(full)).clamp_max(60.0)


@torch.no_grad()
def _decoded(latents: Tensor) -> Tensor:
    vae = AutoencoderKLWan.from_pretrained(zoo.FOLDER / "wan" / "vae")
    mean, std = (
        torch.tensor(v).view(1, -1, 1, 1, 1) for v in (vae.config.latents_mean, vae.config.latents_std)
    )
    pixels: Tensor = vae.decode(latents[:, :, None] * std + mean).sample[:, :, 0]
    return (pixels / 2 + 0.5).clamp(0, 1)
