"""Which family a language model belongs to, and whether its backbone computes what the model computes."""

from typing import Any

import torch

from diffcache.host.components import is_denoiser
from diffcache.language.backbones.base import Backbone
from diffcache.language.recipes.none import NoneConfig
from diffcache.language.sampler.canvas import Canvas
from diffcache.language.session import Session
from diffcache.schedulers.errors import TargetError

_PROBE = 8
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}
_COARSE = 0.1


def is_language_model(target: object) -> bool:
    """Whether this is a model of tokens, of whatever family. A denoiser with a vocabulary (OmniGen, aMUSEd's) is not one."""
    from diffusers import ModelMixin

    has_vocabulary = hasattr(getattr(target, "config", None), "vocab_size")
    of_pictures = isinstance(target, ModelMixin) or is_denoiser(target)
    return isinstance(target, torch.nn.Module) and has_vocabulary and not of_pictures


def backbone_of(model: Any) -> Backbone:
    """The model's parts.

    Raises:
        TargetError: a family that is not known.
    """
    from diffcache.language.backbones.llada import LLaDA
    from diffcache.language.backbones.llada2 import LLaDA2
    from diffcache.language.backbones.llama import Dream, LlamaLike

    core: Any = getattr(model, "model", None)
    if hasattr(core, "transformer") and "blocks" in core.transformer:
        return LLaDA(model)
    layers = getattr(core, "layers", None)
    if layers is not None and hasattr(layers[0], "attention"):
        return LLaDA2(model)
    if layers is not None and hasattr(layers[0], "self_attn"):
        return Dream(model) if "dream" in str(model.config.model_type).lower() else LlamaLike(model)
    raise TargetError(
        f"{type(model).__name__} is no language model of a known family: Llama and its like in Transformers with "
        "is_causal=False, or the published modules of LLaDA, LLaDA2 and Dream."
    )


@torch.no_grad()
def verify(model: Any) -> None:
    """Checks with two short model calls that tokens attend what follows them, and that the backbone computes the model's forward.

    Raises:
        TargetError: the model is causal, in training mode with dropout, or computes something that its backbone does
            not know of.
    """
    net = backbone_of(model)
    device = next(model.parameters()).device
    tokens = torch.arange(1, _PROBE + 1, device=device)[None] % net.vocabulary
    other = torch.cat([tokens[:, :-1], tokens[:, :1]], dim=1)
    logits = net.call(tokens, None)
    if torch.equal(logits[:, 0], net.call(other, None)[:, 0]):
        raise TargetError(
            f"{type(model).__name__} is causal, its tokens do not see what follows them: load a masked-diffusion "
            "model, or set config.is_causal=False where the weights were trained so."
        )
    canvas = Canvas.of_prompts(tokens, 0, mask_id=-1)
    canvas.enter(range(net.token_shift, _PROBE))
    walked, _ = Session(net, NoneConfig(), torch.ones_like(tokens, dtype=torch.bool)).logits(canvas)
    plain = logits[:, : walked.shape[1]].float()
    if float((walked.float() - plain).abs().max()) > _TOLERANCE.get(net.dtype, _COARSE) * float(plain.std()):
        if model.training:
            raise TargetError(
                f"{type(model).__name__} is in training mode, and drops something else at each call: call model.eval() "
                "first."
            )
        raise TargetError(
            f"{type(model).__name__} computes more than its {type(net).__name__} parts: it cannot be accelerated "
            "without a backbone of its own (diffcache/language/backbones)."
        )
