"""Every testbed, to fit or to judge on: it loads plainly, is small and shown, and its prompts are split."""

from __future__ import annotations

import pytest
from diffusers import DiffusionPipeline

from diffcache.evals.testbeds import splits, zoo

MEGABYTE = 1_000_000
SHAPES = {"wan": (9, 3, 32, 32)} | dict.fromkeys((*zoo.OF_FASHION, "ddim"), (3, 32, 32))
"""Of a picture or clip, where it is not 64 x 64."""


@pytest.mark.parametrize("name", zoo.ALL)
def test_loads_plainly_and_renders_finite_pictures(name: str) -> None:
    pipe = DiffusionPipeline.from_pretrained(zoo.FOLDER / name)
    pipe.set_progress_bar_config(disable=True)
    pictures = pipe(**zoo.sample_call(name, seed=0, num_inference_steps=3, n=2))[0]
    assert pictures.shape == (2, *SHAPES.get(name, (3, 64, 64)))
    assert pictures.isfinite().all()
    assert pictures.std() > 0.02


@pytest.mark.parametrize("name", zoo.ALL)
def test_is_small_and_shown(name: str) -> None:
    folder, most = zoo.FOLDER / name, 9 if name in splits.FITTING else 10
    assert 0 < sum(path.stat().st_size for path in folder.rglob("*.safetensors")) <= most * MEGABYTE
    assert (folder / "samples.png").stat().st_size < 200_000
    text = (folder / "README.md").read_text()
    assert name in splits.FITTING or "Debian" in text or "Noto" in text  # where its pictures are from


@pytest.mark.parametrize("name", sorted({*zoo.ALL} - {*zoo.UNCONDITIONAL}))
def test_splits_share_no_prompt_and_grow_at_the_end(name: str) -> None:
    calibration, heldout = zoo.prompts(name, 12, "calibration"), zoo.prompts(name, 12, "heldout")
    assert len(calibration) == len(heldout) == 12
    assert not set(calibration) & set(heldout)
    assert zoo.prompts(name, 18, "heldout")[:12] == heldout
