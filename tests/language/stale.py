"""What a cached call must compute, by the model's own forward: hooks put stale keys and values where rows were not computed."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from diffcache import accelerate, generate, restore
from diffcache.language.backbones.families import backbone_of
from diffcache.language.walks.base import LayerWalk
from diffcache.language.walks.own_forward import OwnForwardWalk

PROJECTIONS = ("k_proj", "v_proj", "qkv_proj", "query_key_value")
"""Names of what makes keys and values, before norms of heads and rotation."""


@dataclass
class Call:
    """A model call of a cached run: the text [b, S] that it was shown, its padding, rows [b, S] that it computed, and logits
    [b, m, V] for positions [b, m] (S for none)."""

    tokens: Tensor
    real: Tensor
    computed: Tensor
    logits: Tensor
    predicted: Tensor


def cached_calls(model: Any, method: str, prompts: Tensor, mask: Tensor | None, **options: Any) -> list[Call]:
    """The calls of a run through the cache."""
    calls: list[Call] = []

    def recording(own: Any) -> Any:
        def call(self: Any, canvas: Any, rows: Any, full: bool) -> Any:
            logits, predicted = own(self, canvas, rows, full)
            batch, length = canvas.tokens.shape
            at = torch.arange(length).expand(batch, -1)
            listed, said = (at[:, each] if isinstance(each, slice) else each for each in (rows, predicted))
            computed = torch.zeros(batch, length, dtype=torch.bool).scatter(1, listed, True)
            real = self.cache.real[:, :length]
            calls.append(Call(*(t.clone() for t in (canvas.tokens, real, computed, logits, said))))
            return logits, predicted

        return call

    accelerate(model, method)
    with ExitStack() as recorded:
        for walk in (LayerWalk, OwnForwardWalk):
            recorded.enter_context(patch.object(walk, "__call__", recording(walk.__call__)))
        generate(model, prompts, mask, **options)
    restore(model)
    return calls


@contextmanager
def stale_where_not(computed: list[Tensor], model: nn.Module) -> Iterator[None]:
    """Inside, keys and values of rows outside `computed[0]` [b, S] are those of the last call that computed them."""
    kept: dict[str, Tensor] = {}

    def hook_of(name: str) -> Any:
        def hook(module: nn.Module, args: Any, out: Tensor) -> Tensor:
            old = kept.get(name)
            if old is not None:
                size = min(old.shape[1], out.shape[1])
                now = computed[0][:, :size, None]
                out = torch.cat([torch.where(now, out[:, :size], old[:, :size]), out[:, size:]], dim=1)
            longer = [] if old is None else [old[:, out.shape[1] :]]
            kept[name] = torch.cat([out, *longer], dim=1)
            return out

        return hook

    named = [(name, each) for name, each in model.named_modules() if name.endswith(PROJECTIONS)]
    hooks = [each.register_forward_hook(hook_of(name)) for name, each in named]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def largest_difference(model: Any, calls: list[Call]) -> float:
    """Between the logits of the calls and those of the model's own forward on stale keys and values."""
    net, largest, computed = backbone_of(model), 0.0, [torch.empty(0)]
    with stale_where_not(computed, model):
        for call in calls:
            computed[0] = call.computed
            real = None if bool(call.real.all()) else call.real
            own = net.call(call.tokens, real, net.block_attention)
            rows = (call.predicted - net.token_shift).clamp(0, own.shape[1] - 1)
            own = own.gather(1, rows[..., None].expand(-1, -1, own.shape[2]))
            asked = call.predicted < call.tokens.shape[1]
            largest = max(largest, float((call.logits - own)[asked].abs().max()))
    return largest
