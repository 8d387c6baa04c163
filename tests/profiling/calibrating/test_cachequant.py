"""CacheQuant: weights, schedule and corrections are calibrated together, and only kept where they help."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.harness import reference
from support.searches.flux_calls import FLUX, flux_calls
from torchao.quantization import IntxWeightOnlyConfig, PerGroup

from diffcache import Schedule, UniformConfig, accelerate, report, restore
from diffcache.attach.attach import detach
from diffcache.host.weight_formats import quantizations_of
from diffcache.prediction.correctors import WEIGHTS
from diffcache.profiling.calibrating import cachequant
from diffcache.profiling.calibrating.cachequant import calibrate_cachequant
from diffcache.profiling.calibrating.corrections import with_corrections
from diffcache.profiling.calibrating.regression import SHRINKAGE
from diffcache.profiling.recording.pictures import rewound
from diffcache.quantization.weights import quantised
from diffcache.schedulers.errors import ConfigError

STEPS = 8
HARSH = IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(16))  # type: ignore[attr-defined]


def test_a_calibrated_schedule_quantises_and_corrects_another_pipeline(tmp_path: Path) -> None:
    pipe = FLUX.build()
    schedule = calibrate_cachequant(pipe, flux_calls(STEPS), HARSH, compute=0.5)
    reached = schedule.measured["psnr_calibration"]
    assert {"every so many ticks", "dynamic programming", "weights corrected", "caching corrected"} <= set(
        reached
    )
    assert schedule.quantization == quantizations_of(pipe) != {}
    assert schedule.decisions.sum() == STEPS / 2
    schedule.save_pretrained(tmp_path)
    accelerate(pipe, schedule)
    picture = FLUX.render(pipe, 7, STEPS)
    other = FLUX.build()
    accelerate(other, Schedule.from_pretrained(tmp_path), quantize=HARSH, keep_original=True)
    assert torch.equal(FLUX.render(other, 7, STEPS), picture)
    restore(other)
    assert torch.equal(FLUX.render(other, 0, STEPS), reference("FluxPipeline", 0, STEPS))


def test_corrections_of_weights_bring_layers_back_to_their_plain_outputs() -> None:
    """Here quantisation has shrunk the outputs of a layer."""
    pipe = FLUX.build()
    accelerate(pipe, "uniform", interval=2, quantize="int8", keep_original=True)
    pipe(**rewound(flux_calls(STEPS, 1)[0]))
    schedule = report(pipe).to_schedule()
    path, gain = "transformer_blocks.0.attn.to_q", 0.8
    layer = pipe.transformer.get_submodule(path)
    layer.weight.scale = layer.weight.scale * gain
    layer.bias.data *= gain
    detach(pipe)
    found = cachequant._layer_coefficients(
        pipe, flux_calls(STEPS), {"transformer": pipe.transformer}, schedule
    )
    samples = len(flux_calls(STEPS)) * int(schedule.decisions.sum())
    trust = samples / (samples + SHRINKAGE)
    expected = torch.full((layer.out_features,), 1 + trust * (1 / gain - 1))
    torch.testing.assert_close(found[f"transformer.{path}/{WEIGHTS}/gain"], expected, atol=0.01, rtol=0)
    assert set(found) == {
        f"transformer.{p}/{WEIGHTS}/{kind}"
        for p in quantised[pipe.transformer].layers
        for kind in ("gain", "shift")
    }


def test_ticks_are_chosen_by_the_median_and_corrections_by_most_samples_too() -> None:
    pipe = FLUX.build()
    accelerate(pipe, UniformConfig(interval=2))
    pipe(**rewound(flux_calls(STEPS, 1)[0]))
    ticks = report(pipe).to_schedule()
    corrected = with_corrections(ticks, {"transformer/all/shift": torch.zeros(STEPS, 1)})
    others = replace(ticks, producer={})

    psnrs = iter([[40.0, 40.0, 40.0], [41.0, 41.0, 30.0], [42.0, 42.0, 30.0], [42.0, 42.0, 42.0]])
    runs: Any = SimpleNamespace(psnrs=lambda config: torch.tensor(next(psnrs)))
    best = cachequant._Best(runs, "even", ticks)
    best.offer("planned", others)
    assert best.schedule is others
    best.offer("on two of three", corrected)
    assert best.schedule is others
    best.offer("on all", corrected)
    assert best.schedule is corrected
    assert best.reached == {"even": 40.0, "planned": 41.0, "on two of three": 42.0, "on all": 42.0}


def test_every_second_call_is_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, seen = [{"nth": i} for i in range(5)], []
    monkeypatch.setattr(cachequant, "FullRuns", lambda pipe, held_out: seen.append(held_out))

    def fitting(pipe: Any, fitted: Any, *others: Any) -> Any:
        seen.append(fitted)
        raise KeyboardInterrupt

    monkeypatch.setattr(cachequant, "_schedules", fitting)
    with pytest.raises(KeyboardInterrupt):
        calibrate_cachequant(FLUX.build(), calls, None)
    assert seen == [calls[1::2], calls[::2]]


def test_a_single_call_is_refused_since_none_could_be_held_out() -> None:
    with pytest.raises(ConfigError, match="give at least two calls"):
        calibrate_cachequant(FLUX.build(), flux_calls(STEPS, 1), "int8")


def test_after_an_error_the_original_weights_are_back(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = FLUX.build()

    def failing(*args: Any) -> None:
        raise RuntimeError("half-way")

    monkeypatch.setattr(cachequant, "run_in_shadow", failing)
    with pytest.raises(RuntimeError, match="half-way"):
        calibrate_cachequant(pipe, flux_calls(STEPS), "int8", compute=0.5)
    assert torch.equal(FLUX.render(pipe, 0, STEPS), reference("FluxPipeline", 0, STEPS))
