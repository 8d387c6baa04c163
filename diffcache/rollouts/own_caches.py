"""Diffusers' video transformers that keep their past themselves, and why `rollout` is not for them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

OWN_CACHES: Mapping[str, tuple[str, str]] = {
    "AnyFlowFARTransformer3DModel": (
        "it encodes its whole past anew after each chunk, older chunks in larger patches, as it was trained to",
        "use its pipeline as it is",
    ),
    "HeliosTransformer3DModel": (
        "it keeps no keys and values: each call is given its newest frames again, older ones in larger patches",
        "choose history_sizes= of its pipeline",
    ),
    "SanaWMLTX2RefinerTransformer3DModel": (
        "it keeps a sink and its newest frames itself",
        "use diffcache.rollouts.refiner.refiner_history to choose what it keeps",
    ),
    "SanaWMTransformer3DModel": (
        "its linear attention keeps a state of fixed size instead of keys and values",
        "use its pipeline as it is",
    ),
    "WanAnimate2Transformer3DModel": (
        "what it keeps are keys and values of the reference, which does not grow with the video",
        "use its pipeline as it is",
    ),
}
"""By class: why there is nothing for a policy to choose, and what to do instead."""


def own_cache_of(denoiser: nn.Module) -> tuple[str, str] | None:
    """The entry of `OWN_CACHES` for a denoiser; None for most."""
    names = (kind.__name__ for kind in type(denoiser).__mro__)
    return next((OWN_CACHES[name] for name in names if name in OWN_CACHES), None)
