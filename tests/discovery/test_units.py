"""What inside a denoiser is an attention or a feed-forward: every attention of a Diffusers transformer is found."""

from __future__ import annotations

import pytest
from zoo.denoisers import CASES

from diffcache.discovery.units import is_attention

SAMPLE = (
    "FluxTransformer2DModel",
    "Kandinsky5Transformer3DModel",
    "Kandinsky6Transformer3DModel",
    "Kandinsky6SRTransformer3DModel",
    "WanTransformer3DModel",
    "LTXVideoTransformer3DModel",
    "PRXTransformer2DModel",
    "JoyImageEditTransformer3DModel",
    "UNet2DConditionModel",
    "Lumina2Transformer2DModel",
    "HunyuanVideo15Transformer3DModel",
)


@pytest.mark.parametrize("name", SAMPLE)
def test_every_attention_is_found(name: str) -> None:
    attentions = [
        (path, module)
        for path, module in CASES[name].build().named_modules()
        if type(module).__name__.endswith("Attention")
    ]
    assert attentions
    assert [path for path, module in attentions if not is_attention(module)] == []
