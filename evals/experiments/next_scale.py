"""ScaleKV on the next-scale testbed: bytes of keys and values against PSNR to the pictures with all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from diffusers import AutoencoderKLWan
from torch import Tensor

from diffcache.evals.metrics.fidelity import psnr
from diffcache.evals.testbeds import procedural, zoo
from diffcache.evals.testbeds.next_scale_model import NextScale
from diffcache.evals.testbeds.shape_classifier import ShapeColourClassifier
from diffcache.rollouts.scale_kv import ScaleKV
from diffcache.rollouts.scales import choose_drafters, scales

BUDGETS = (6, 12, 24, 48)
"""Tokens that a layer keeps, mean over the layers; all scales have 194."""
DRAFTERS = 2
CALIBRATION = 10
"""Samples that drafters are chosen from, as published; others are scored."""


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
    """A row for each policy and budget."""
    model = NextScale.load()
    drafters = choose_drafters(model, lambda: _drawn(model, CALIBRATION, 1), DRAFTERS)
    full = _drawn(model, samples, 0)
    with scales(model, ScaleKV(budget=10**6)) as caches:
        _drawn(model, samples, 0)
    rows = [{"policy": "everything", "budget": None, **_figures(full, full, caches.kept_bytes[-1], samples)}]
    for budget in BUDGETS:
        for name, policy in _policies(budget, drafters).items():
            with scales(model, policy) as caches:
                drawn = _drawn(model, samples, 0)
            figures = _figures(drawn, full, caches.kept_bytes[-1], samples)
            rows.append({"policy": name, "budget": budget, **figures})
    return {"drafters": drafters, "rows": rows}


def _policies(budget: int, drafters: tuple[int, ...]) -> dict[str, ScaleKV]:
    return {
        "scale-kv": ScaleKV(budget=budget, drafters=drafters),
        "uniform budgets": ScaleKV(budget=budget),
        "random tokens (control)": RandomTokens(budget=budget, drafters=drafters, pool=1),
        "newest tokens (control)": NewestTokens(budget=budget, drafters=drafters, pool=1),
    }


def _drawn(model: NextScale, samples: int, seed: int) -> Tensor:
    labels = torch.arange(samples) * 7 % procedural.NUM_CLASSES
    with torch.no_grad():
        return model.sample(labels, torch.Generator().manual_seed(seed))


@torch.no_grad()
def _figures(latents: Tensor, full: Tensor, nbytes: int, samples: int) -> dict[str, Any]:
    pictures, wanted = _decoded(latents), _decoded(full)
    labels = torch.arange(samples) * 7 % procedural.NUM_CLASSES
    seen = ShapeColourClassifier.load().predict(pictures)
    same = torch.equal(latents, full)
    return {
        "bytes": nbytes // samples,
        "psnr": None if same else round(float(psnr(pictures, wanted).median()), 2),
        "accuracy": round(float((seen == labels).float().mean()), 3),
    }


def _decoded(latents: Tensor) -> Tensor:
    vae = AutoencoderKLWan.from_pretrained(zoo.FOLDER / "wan" / "vae")
    mean, std = (
        torch.tensor(v).view(1, -1, 1, 1, 1) for v in (vae.config.latents_mean, vae.config.latents_std)
    )
    pixels: Tensor = vae.decode(latents[:, :, None] * std + mean).sample[:, :, 0]
    return (pixels / 2 + 0.5).clamp(0, 1)
