"""CLIP score (arXiv 2104.08718): how well pictures fit their prompts."""

from collections.abc import Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from diffcache.evals.errors import EvaluationError
from diffcache.evals.metrics.media import to_pil

WEIGHT = 100.0
"""By which the cosine is multiplied, as in torchmetrics and most tables; the paper has 2.5."""


class ClipScore:
    """The CLIP score with a model of open-clip.

    Args:
        model: an open-clip model name ("ViT-L-14"), or "hf-hub:..." for one from the hub.
        weights: an open-clip tag ("openai") or a local checkpoint; None for a hub model, which has its own.

    Raises:
        EvaluationError: there is no such model, or its weights are missing.
    """

    def __init__(self, model: str, weights: str | None = None) -> None:
        import open_clip

        try:
            built: Any = open_clip.create_model_and_transforms(model, pretrained=_existing(model, weights))
        except (RuntimeError, OSError, UnpicklingError) as error:
            raise EvaluationError(
                f"CLIP model {model} cannot be loaded with weights {weights} ({_first_sentence(error)}): "
                "name a checkpoint of that model, or an open-clip tag."
            ) from error
        self.net, _, self.transform = built
        self.net.eval()
        self.tokenize = open_clip.get_tokenizer(model)

    @torch.no_grad()
    def __call__(self, pictures: Tensor, prompts: Sequence[str]) -> Tensor:
        """100 times the cosine of picture and prompt, at least 0; the score of a video is the mean over its frames.

        Args:
            pictures: [N, 3, H, W] or [N, F, 3, H, W] in 0..1.
            prompts: of each picture, N.

        Returns:
            fp32 [N].
        """
        seen = self._seen(pictures)
        said = functional.normalize(self.net.encode_text(self.tokenize(list(prompts))), dim=-1)
        cosines: Tensor = (seen.view(len(prompts), -1, said.shape[-1]) * said[:, None]).sum(-1)
        return WEIGHT * cosines.clamp_min(0).mean(1)

    @torch.no_grad()
    def similarity(self, pictures: Tensor, reference: Tensor) -> Tensor:
        """100 times the cosine of two pictures' features; of a video the mean over its frames.

        Args:
            pictures, reference: [N, 3, H, W] or [N, F, 3, H, W] in 0..1.

        Returns:
            fp32 [N].
        """
        cosines = (self._seen(pictures) * self._seen(reference)).sum(-1)
        return WEIGHT * cosines.view(len(pictures), -1).mean(1)

    def _seen(self, pictures: Tensor) -> Tensor:
        """Unit features of every frame, [frames, D]."""
        pixels = torch.stack([self.transform(to_pil(frame)) for frame in pictures.flatten(0, -4)])
        return functional.normalize(self.net.encode_image(pixels), dim=-1)


def _existing(model: str, weights: str | None) -> str | None:
    """The weights that are named.

    Raises:
        EvaluationError: a path that does not exist, or no weights, for which open-clip would take random ones.
    """
    if weights is None and not model.startswith("hf-hub:"):
        raise EvaluationError(f"CLIP model {model} needs weights: name an open-clip tag, or a checkpoint.")
    if weights is not None and Path(weights).suffix and not Path(weights).is_file():
        raise EvaluationError(f"no CLIP weights at {weights}: name the checkpoint file, or an open-clip tag.")
    return weights


def _first_sentence(error: Exception) -> str:
    return str(error).splitlines()[0].split(". ")[0].rstrip(".: ")
