"""Which net a model is called through."""

from typing import Any

import torch

from diffcache.host.compiled import uncompiled
from diffcache.host.components import is_denoiser
from diffcache.language.backbones.base import Net
from diffcache.schedulers.errors import TargetError


def is_language_model(target: object) -> bool:
    """Whether this is a model of tokens, of whatever family. A denoiser with a vocabulary (OmniGen, aMUSEd's) is not one."""
    from diffusers import ModelMixin

    config = getattr(target, "config", None)
    has_vocabulary = hasattr(config, "vocab_size") or hasattr(
        getattr(config, "text_config", None), "vocab_size"
    )
    of_pictures = isinstance(target, ModelMixin) or is_denoiser(target)
    return isinstance(target, torch.nn.Module) and has_vocabulary and not of_pictures


def backbone_of(model: Any) -> Net:
    """The net of a model: Transformers' own classes as they are, remote code part by part.

    Raises:
        TargetError: a family that is not known, or one that keeps its keys and values itself.
    """
    from diffcache.language.backbones import llada, llada2, llama
    from diffcache.language.backbones.native import Native, is_native

    if isinstance(model, torch.nn.Module) and is_native(uncompiled(model)):
        return Native(model)
    core: Any = getattr(model, "model", None)
    parts, layers = getattr(core, "transformer", None), getattr(core, "layers", None)
    if parts is not None and "blocks" in parts and hasattr(parts["blocks"][0], "q_proj"):
        return llada.LLaDA(model)
    if (
        layers is not None
        and hasattr(layers[0], "attention")
        and hasattr(layers[0].attention, "query_key_value")
    ):
        return llada2.LLaDA2(model)
    kind = str(getattr(getattr(model, "config", None), "model_type", "")).lower()
    if layers is not None and hasattr(layers[0], "self_attn"):
        for word, family in (("dream", llama.Dream), ("sdar", llama.SDAR), ("fast_dllm", llama.FastDLLM)):
            if word in kind:
                return family(model)
        return llama.LLaDAMoE(model)
    if "diffusion_gemma" in kind:
        raise TargetError(
            "DiffusionGemma keeps the keys and values of all finished text itself, and computes only the canvas that it is "
            "writing: there is nothing for a cache to skip. Use it as it is."
        )
    raise TargetError(
        f"{type(model).__name__} is no language model of a known family: causal language models of Transformers with "
        "is_causal=False, or the published modules of LLaDA, LLaDA-MoE, LLaDA2, Dream, SDAR, Fast-dLLM v2 and MMaDA."
    )
