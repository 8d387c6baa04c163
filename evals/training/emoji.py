"""Training pictures of emoji: Noto's drawings from `emoji-datasource-google`, on plain grounds.

The package is unpacked into the work folder, not into this repository:

    npm pack emoji-datasource-google@16.0.0
    mkdir -p outputs/testbeds/data/emoji && tar xzf emoji-datasource-google-16.0.0.tgz -C outputs/testbeds/data/emoji
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from diffcache.evals.errors import EvaluationError
from diffcache.evals.testbeds import zoo
from diffcache.evals.testbeds.emoji import GROUNDS, caption, codes, words
from diffcache.evals.training.common import Latents, encode, is_block_matrix, made_once, save_pipeline
from diffcache.evals.training.grids import save_grid
from diffcache.evals.training.loop import Pace, Progress, Training, fit
from diffcache.evals.training.optim import Optimiser
from diffcache.evals.training.text import Vocabulary

SIDE = 64
LENGTH = 8  # tokens per prompt, padding included; the longest caption has six words
_VIEWS = 48  # pictures of each drawing
_SEED = 60_000


def vocabulary() -> Vocabulary:
    """The words of the captions."""
    return Vocabulary(words(), LENGTH)


def drawings(work: Path, codes: Iterable[str]) -> Tensor:
    """The drawings of these code points, with transparency: [n, 4, 64, 64] in [0, 1].

    Raises:
        EvaluationError: the package is not in the work folder.
    """
    folder = work / "data" / "emoji" / "package" / "img" / "google" / "64"
    if not folder.exists():
        raise EvaluationError(
            f"no drawings in {folder}: unpack `npm pack emoji-datasource-google@16.0.0` into {folder.parents[3]}."
        )
    pictures = [np.array(Image.open(folder / f"{code}.png").convert("RGBA")) for code in codes]
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 255


def moved(cutouts: Tensor, generator: torch.Generator) -> Tensor:
    """Each drawing [n, 4, s, s] a little smaller and moved, its colours multiplied by its opacity."""
    n = len(cutouts)
    zoom = 1 + 0.2 * torch.rand(n, generator=generator)
    shift = (torch.rand(n, 2, generator=generator) * 2 - 1) * (zoom - 1)[:, None]
    grid = torch.zeros(n, 2, 3)
    grid[:, 0, 0] = grid[:, 1, 1] = zoom
    grid[:, :, 2] = shift
    size = [n, 4, *cutouts.shape[-2:]]
    premultiplied = torch.cat([cutouts[:, :3] * cutouts[:, 3:], cutouts[:, 3:]], 1)
    return functional.grid_sample(
        premultiplied, functional.affine_grid(grid, size, align_corners=False), align_corners=False
    )


def on_grounds(premultiplied: Tensor, grounds: Tensor) -> Tensor:
    """Each of `moved`'s drawings [n, 4, s, s] on its ground [n, 3]: pictures [n, 3, s, s] in [0, 1]."""
    return (premultiplied[:, :3] + (1 - premultiplied[:, 3:]) * grounds[:, :, None, None]).clamp(0, 1)


def pictures(cutouts: Tensor, per_drawing: int, seed: int) -> tuple[Tensor, Tensor]:
    """Views of n drawings, each on a random ground.

    Returns:
        pictures [per_drawing * n, 3, 64, 64] as uint8, all drawings in turn, and their grounds [per_drawing * n], indices
        into `GROUNDS`.
    """
    colours, generator = torch.tensor(list(GROUNDS.values())), torch.Generator().manual_seed(seed)
    grounds = torch.randint(len(colours), (per_drawing, len(cutouts)), generator=generator)
    views = (on_grounds(moved(cutouts, generator), colours[row]) for row in grounds)
    pixels = [view.mul(255).round().to(torch.uint8) for view in views]
    return torch.cat(pixels), grounds.flatten()


def training_pictures(work: Path) -> tuple[Tensor, Tensor]:
    """The `pictures` that denoisers are trained on: 48 views of each drawing that prompts name."""
    return pictures(drawings(work, codes().values()), _VIEWS, _SEED)


@torch.no_grad()
def latents(vae: AutoencoderKL, training: Training) -> Latents:
    """Encodes the training pictures, or reads their latents from the work folder if they are there."""
    pixels, chosen = training_pictures(training.work)
    names, grounds = list(codes()) * _VIEWS, list(GROUNDS)
    texts = [caption(name, grounds[i]) for name, i in zip(names, chosen.tolist(), strict=True)]
    encoded = made_once(training.work / "emoji.pt", lambda: encode(vae, pixels, training.device))
    return Latents(encoded, torch.zeros(len(texts), dtype=torch.long), texts)


def begun(build: Callable[[AutoencoderKL], Any], training: Training) -> tuple[Any, Latents, list[str]]:
    """What every training on emoji begins with.

    Args:
        build: makes the pipeline around the autoencoder that `train_testbeds.py emoji_vae` has left.
        training: its seed is set.

    Returns:
        The pipeline on its device, the latents, and their captions with the empty prompt as the last one.
    """
    torch.manual_seed(training.seed)
    vae = AutoencoderKL.from_pretrained(training.work / "emoji_vae" / "vae")
    pipe = build(vae).to(training.device)
    data = latents(vae, training)
    return pipe, data, [*data.captions, ""]


def train_together(
    pipe: Any,
    parts: Iterable[str],
    loss: Callable[[torch.Generator], Tensor],
    training: Training,
    *,
    steps: int,
    is_matrix: Callable[[str, Tensor], bool] = is_block_matrix,
    lr: float = 3e-3,
) -> Progress:
    """Trains components of a pipeline together, and saves the pipeline to `training.out`.

    Args:
        pipe: draws what prompts ask for.
        parts: names of the components.
        loss: see `fit`.
        training: of the testbed of that name.
        steps: of previews.
        is_matrix: see `Optimiser`.
        lr: the highest learning rate.
    """

    def preview(path: Path) -> None:
        save_grid(pipe(**zoo.sample_call(training.name, 0, steps, n=16))[0], path)

    models = nn.ModuleDict({name: pipe.components[name] for name in parts})
    progress = fit(models, loss, Optimiser(models, is_matrix), Pace(lr=lr), training, preview)
    save_pipeline(pipe, training.out)
    return progress
