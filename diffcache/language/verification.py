"""Checks before anything is attached that a net computes what the model's own forward computes, with padding and at length."""

from typing import Any

import torch
from torch import Tensor

from diffcache.language.backbones.base import Net
from diffcache.language.backbones.families import backbone_of
from diffcache.language.recipes.base import LanguageConfig
from diffcache.language.recipes.none import NoneConfig
from diffcache.language.sampler.canvas import Canvas
from diffcache.language.session import Session, check_mode
from diffcache.schedulers.errors import TargetError

_LENGTH = 100  # shows windows and blocks of up to half as many tokens; no multiple of a usual block
_SHORT = 8  # hides them
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}
_COARSE = 0.1


@torch.no_grad()
def verify(model: Any, config: LanguageConfig) -> None:
    """Checks that tokens attend what follows them, and that the method's net computes the model's forward.

    A few calls of 100 tokens, one text of two padded on the left, in which any mask shows that the net does not have.

    Raises:
        TargetError: a causal model; one in training mode with dropout; one that computes something, or masks attention in a
            way, that the net does not know of.
    """
    net = backbone_of(model)
    check_mode(model)
    checked = net.parts() if config.looks_into_layers else net
    tokens = _texts(net, _LENGTH)
    if net.block_attention is None and not _sees_ahead(net, tokens[:1]):
        raise TargetError(
            f"{type(model).__name__} is causal, its tokens do not see what follows them: load a masked-diffusion "
            "model, or set config.is_causal=False where the weights were trained so."
        )
    whole = torch.ones_like(tokens, dtype=torch.bool)
    padded = whole.clone()
    padded[0, : 2 * (net.block_attention or 7)] = False
    if _agree(net, checked, tokens, whole) and _agree(net, checked, tokens, padded):
        return
    short = _texts(net, _SHORT)
    if net.block_attention is None and _agree(net, checked, short, torch.ones_like(short, dtype=torch.bool)):
        raise TargetError(
            f"{type(model).__name__} masks attention in a way that its cache does not have, such as windows, blocks or other "
            "padding: where it attends in blocks, say of how many tokens in model.config.block_attention."
        )
    raise TargetError(
        f"{type(model).__name__} computes more than its {type(checked).__name__} parts: it cannot be accelerated "
        "without a backbone of its own (diffcache/language/backbones)."
    )


def _texts(net: Net, length: int) -> Tensor:
    """Two texts of various tokens."""
    device = next(net.model.parameters()).device
    tokens = torch.arange(1, 2 * length + 1, device=device) % net.vocabulary
    return tokens.view(2, length)


def _sees_ahead(net: Net, tokens: Tensor) -> bool:
    """Whether the first logits depend on the second token."""
    other = tokens.clone()
    other[:, 1] = tokens[:, -1]
    return not torch.equal(net.call(tokens, None, None)[:, 0], net.call(other, None, None)[:, 0])


def _agree(net: Net, checked: Net, tokens: Tensor, real: Tensor) -> bool:
    """Whether a call of all rows through the cache has the logits of the model's own forward, where there is no padding."""
    padded = not bool(real.all())
    plain = net.call(tokens, real if padded else None, net.block_attention)
    canvas = Canvas.of_prompts(tokens, 0, mask_id=-1)
    canvas.attention_block = net.block_attention
    canvas.enter(range(net.token_shift, tokens.shape[1]))
    found, _ = Session(checked, NoneConfig(), real).logits(canvas)
    seen = real[:, : found.shape[1]]
    plain = plain[:, : found.shape[1]][seen].float()
    difference = (found[seen].float() - plain).abs().max()
    return float(difference) <= _TOLERANCE.get(net.dtype, _COARSE) * float(plain.std())
