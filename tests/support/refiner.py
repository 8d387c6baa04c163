"""A tiny SANA-WM refiner without a text encoder."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from torch import Tensor
from zoo.denoisers import CASES

CASE = CASES["SanaWMLTX2RefinerTransformer3DModel"]


def tiny_refiner(**config: Any) -> Any:
    """Its pipeline; keyword arguments replace entries of the transformer's configuration."""
    module = pytest.importorskip("diffusers.pipelines.sana_wm.refiner")

    class Refiner(module.SanaWMLTX2Refiner):  # type: ignore[misc, name-defined]
        def _encode_prompt(self, prompt: str, device: Any, dtype: Any) -> tuple[Tensor, Tensor]:
            states = CASE.inputs(torch.Generator().manual_seed(0), 1)["encoder_hidden_states"]
            return states, torch.ones(states.shape[:2])

    made = Refiner(CASE.build(**config), None, None, None, FlowMatchEulerDiscreteScheduler(shift=1.0))
    made.set_progress_bar_config(disable=True)
    return made


def raw_latents(frames: int, side: int) -> Tensor:
    """What there is to refine, [1, 4, frames, side, side]."""
    return torch.randn(1, 4, frames, side, side, generator=torch.Generator().manual_seed(1))
