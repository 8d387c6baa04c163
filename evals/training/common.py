"""What the trainings of pipelines share: latents, noising, which parameters are matrices, saving."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from diffusers import AutoencoderKL, DiffusionPipeline
from torch import Tensor, nn

from diffcache.evals.testbeds import procedural

POOL = 20_000
POOL_SEED = 50_000


@dataclass(frozen=True)
class Latents:
    """Encoded training pictures: `latents` [n, 8, 16, 16] in float16, `labels` [n], n captions."""

    latents: Tensor
    labels: Tensor
    captions: list[str]


@torch.no_grad()
def picture_latents(vae: AutoencoderKL, cache: Path, device: torch.device, n: int = POOL) -> Latents:
    """Encodes n procedural pictures, or reads their latents from `cache` if they are there."""
    batch = procedural.pictures(n, seed=POOL_SEED)
    latents = made_once(cache, lambda: encode(vae, batch.pixels, device))
    return Latents(latents, batch.labels, batch.captions)


def made_once(path: Path, make: Callable[[], Tensor]) -> Tensor:
    """The tensor in the file `path`, which is made if it is not there."""
    if not path.exists():
        torch.save(make(), path)
    tensor: Tensor = torch.load(path, weights_only=True)
    return tensor


@torch.no_grad()
def encode(vae: AutoencoderKL, pixels: Tensor, device: torch.device) -> Tensor:
    """Latents [n, c, h, w] in float16 of pictures [n, 3, s, s] in uint8, or in floats in [0, 1]."""
    scale = 255 if pixels.dtype == torch.uint8 else 1
    chunks = [
        vae.encode((part / scale * 2 - 1).to(device)).latent_dist.mode() for part in torch.split(pixels, 128)
    ]
    return torch.cat([chunk.half().cpu() for chunk in chunks]).contiguous()


def drawn(latents: Tensor, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A random batch: clean latents [n, ...] in fp32, and the rows [n] of their prompts.

    For guidance one prompt in ten is replaced by the empty one, whose row is after the last.
    """
    device = generator.device
    rows = torch.randint(len(latents), (n,), generator=generator, device=device)
    dropped = torch.rand(n, generator=generator, device=device) < 0.1
    return latents[rows.cpu()].to(device).float(), torch.where(dropped, len(latents), rows)


def v_target(clean: Tensor, noise: Tensor, alphas_cumprod: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Noisy latents, and the velocity sqrt(a) * noise - sqrt(1 - a) * clean (Salimans and Ho 2022), at timesteps t [n]."""
    signal = alphas_cumprod[t].sqrt().view(-1, *[1] * (clean.ndim - 1))
    sigma = (1 - alphas_cumprod[t]).sqrt().view_as(signal)
    return signal * clean + sigma * noise, signal * noise - sigma * clean


def flow_target(clean: Tensor, noise: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
    """Noisy latents (1 - sigma) * clean + sigma * noise, and the velocity noise - clean, for sigma [n]."""
    s = sigma.view(-1, *[1] * (clean.ndim - 1))
    return (1 - s) * clean + s * noise, noise - clean


def shifted_sigma(n: int, shift: float, generator: torch.Generator) -> Tensor:
    """Noise levels [n] in (0, 1) to train at: logit-normal, then shifted towards noise as in sampling."""
    u = torch.randn(n, generator=generator, device=generator.device).mul(1.2).sigmoid()
    return shift * u / (1 + (shift - 1) * u)


class FlowBatch(NamedTuple):
    """A random batch of flow matching.

    Attributes:
        noisy: latents with noise, [n, ...] in fp32.
        target: the velocities to predict, of the same shape.
        sigma: noise levels, [n].
        rows: of the prompts, as `drawn` has them, [n].
    """

    noisy: Tensor
    target: Tensor
    sigma: Tensor
    rows: Tensor


def flow_batch(latents: Tensor, n: int, shift: float, generator: torch.Generator) -> FlowBatch:
    """n of these latents with noise, at levels from `shifted_sigma`."""
    clean, rows = drawn(latents, n, generator)
    sigma = shifted_sigma(n, shift, generator)
    noise = torch.randn(clean.shape, generator=generator, device=generator.device)
    return FlowBatch(*flow_target(clean, noise, sigma), sigma, rows)


def informative_timesteps(n: int, alphas_cumprod: Tensor, generator: torch.Generator) -> Tensor:
    """Timesteps [n] of a discrete noise scheduler to train at, most of them where shapes are decided.

    Most timesteps of a DDPM schedule are so noisy that little can be learnt from them. So seven eighths are drawn
    by noise level sigma / (alpha + sigma), as flow matching draws them. The rest are uniform, to cover both ends.
    """
    device = generator.device
    levels = (1 - alphas_cumprod).sqrt() / (alphas_cumprod.sqrt() + (1 - alphas_cumprod).sqrt())
    by_level = torch.searchsorted(levels.contiguous(), shifted_sigma(n, 2.0, generator)).clamp_max(
        len(levels) - 1
    )
    uniform = torch.randint(len(levels), (n,), generator=generator, device=device)
    return torch.where(torch.rand(n, generator=generator, device=device) < 0.125, uniform, by_level)


def is_block_matrix(name: str, parameter: Tensor) -> bool:
    """Whether a parameter is a weight matrix inside a repeated block; Muon updates these."""
    inside = "blocks." in name or "block." in name or "layers." in name
    table = "embedding_table" in name or "relative_attention_bias" in name
    return inside and not table and parameter.ndim >= 2 and min(parameter.shape[:2]) >= 16


def zero_modulation(model: nn.Module) -> None:
    """Sets every adaptive norm of the blocks to zero (DiT's adaLN-Zero), so that deep stacks start as identities."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and (
            ".norm1.linear" in name or ".norm1_context.linear" in name or ".norm.linear" in name
        ):
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)


def save_pipeline(pipe: DiffusionPipeline, folder: Path) -> None:
    """Saves as safetensors: text encoders in float32, everything else in float16.

    Without a dtype Diffusers loads its models in float32, but Transformers loads its own as they were saved. Text
    encoders in float16 would not fit such a pipeline.
    """
    pipe.to(torch.float16)
    for name, part in pipe.components.items():
        if name.startswith("text_encoder") and part is not None:
            part.float()
    pipe.save_pretrained(folder, safe_serialization=True)
    for path in folder.rglob("*.json"):
        forget_origin(path)


def forget_origin(path: Path) -> None:
    """Removes the path that a part was loaded from in training: it exists on that machine only."""
    config = json.loads(path.read_text())
    if config.pop("_name_or_path", None) is not None:
        path.write_text(json.dumps(config, indent=2) + "\n")
