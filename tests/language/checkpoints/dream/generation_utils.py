"""Dream's own sampler, for temperature 0 and the most confident tokens first ("maskgit_plus")."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import GenerationConfig


class DreamGenerationConfig(GenerationConfig):
    def __init__(self, **kwargs: Any) -> None:
        self.steps: int = kwargs.pop("steps", 512)
        self.eps: float = kwargs.pop("eps", 1e-3)
        self.alg: str = kwargs.pop("alg", "origin")
        self.mask_token_id: int | None = kwargs.pop("mask_token_id", None)
        super().__init__(**kwargs)

    def validate(self, **kwargs: Any) -> None:
        pass


class DreamGenerationMixin:
    @torch.no_grad()
    def diffusion_generate(
        self, inputs: Tensor, attention_mask: Tensor | None = None, *, max_new_tokens: int, steps: int
    ) -> Tensor:
        mask_id, eps = self.generation_config.mask_token_id, self.generation_config.eps
        x = functional.pad(inputs, (0, max_new_tokens), value=mask_id)
        positions, seen = None, "full"
        if attention_mask is not None and bool((attention_mask == 0).any()):
            real = functional.pad(attention_mask, (0, max_new_tokens), value=1)
            positions = (real.long().cumsum(-1) - 1).masked_fill(real == 0, 1)
            seen = torch.logical_and(real[:, None, None, :], real[:, None, :, None])
        times = torch.linspace(1, eps, steps + 1)
        for i in range(steps):
            masked = x == mask_id
            logits = self(x, seen, positions).logits
            logits = torch.cat([logits[:, :1], logits[:, :-1]], dim=1)
            sure, guess = logits.softmax(-1).max(-1)
            count = int(masked.sum() / len(x))
            if i < steps - 1:
                count = int(count * (1 - times[i + 1] / times[i]))
            if count > 0:
                best = sure.masked_fill(~masked, -torch.inf).topk(count, dim=-1).indices
                x.scatter_(1, best, guess.gather(1, best))
        return x
