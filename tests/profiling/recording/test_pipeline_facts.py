"""A folder of renders belongs to one pipeline: a change of any of its networks is noticed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.features import denoiser, lora
from support.searches.flux_calls import FLUX, flux_calls

from diffcache import accelerate, tune
from diffcache.evals.testbeds import zoo
from diffcache.profiling.recording.pipeline_facts import facts_of
from diffcache.schedulers.errors import ScheduleError


def with_lora() -> Any:
    pipe = FLUX.build()
    lora(pipe)
    return pipe


def changed(name: str) -> Callable[[Any], None]:
    """Changes the last parameter of a network."""

    def change(pipe: Any) -> None:
        *_, last = getattr(pipe, name).parameters()
        with torch.no_grad():
            last += 1

    return change


CHANGES: dict[str, Callable[[Any], None]] = {
    "scale of an adapter": lambda pipe: denoiser(pipe).set_adapters("one", 0.5),
    "adapter left out": lambda pipe: denoiser(pipe).disable_adapters(),
    "adapter fused": lambda pipe: pipe.fuse_lora(components=["transformer"]),
    "autoencoder": changed("vae"),
    "denoiser": changed("transformer"),
    "autoencoder's dtype": lambda pipe: pipe.vae.to(torch.float16),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_changes_pictures_changes_the_facts(change: Callable[[Any], None]) -> None:
    pipe = with_lora()
    before = facts_of(pipe)
    assert facts_of(with_lora()) == before
    change(pipe)
    assert facts_of(pipe) != before


def test_a_text_encoder_counts() -> None:
    pipe = zoo.load("flux")
    before = facts_of(pipe)
    changed("text_encoder")(pipe)
    assert facts_of(pipe) != before


def test_a_cache_changes_nothing() -> None:
    pipe = FLUX.build()
    before = facts_of(pipe)
    assert facts_of(accelerate(pipe)) == before


def test_tune_refuses_the_folder_of_a_pipeline_whose_adapter_has_another_scale(tmp_path: Path) -> None:
    pipe, calls = with_lora(), flux_calls(6, 3)
    tune(pipe, calls, speedup=1.5, folder=tmp_path)
    denoiser(pipe).set_adapters("one", 0.5)
    with pytest.raises(ScheduleError, match="another networks: choose another folder"):
        tune(pipe, calls, speedup=1.5, folder=tmp_path)
