"""CacheQuant's calibration: in order, along the run as it will be, on the quantised model, and never a loss in-sample."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.harness import reference
from torchao.quantization import IntxWeightOnlyConfig, PerGroup
from zoo.pipelines import CASES

from diffcache import Schedule, UniformConfig, accelerate, report, restore
from diffcache.attach.attach import detach
from diffcache.engine.observers import observed
from diffcache.host.weight_formats import quantizations_of
from diffcache.prediction.correctors import WEIGHTS
from diffcache.profiling.calibrating import cachequant
from diffcache.profiling.calibrating.moments import SHRINKAGE, InOrder, Sums
from diffcache.profiling.calibrating.repairs import with_corrections
from diffcache.profiling.recording.calling import accelerated
from diffcache.profiling.recording.pictures import rewound
from diffcache.quantization.weights import quantised
from diffcache.recipes.replay import ReplayConfig
from diffcache.schedulers.errors import ConfigError

FLUX = CASES["FluxPipeline"]
STEPS = 8
HARSH = IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(16))  # type: ignore[attr-defined]


def calls(count: int = 2) -> list[dict[str, Any]]:
    return [FLUX.call(seed, STEPS) for seed in range(count)]


@pytest.mark.parametrize("samples", [1, 8, 1000])
def test_a_fit_is_never_worse_than_none_where_it_was_fitted(samples: int) -> None:
    """The shrunk fit lies between no correction and the least squares of a convex error."""
    torch.manual_seed(0)
    u = torch.randn(samples, 16, 5, dtype=torch.float64) + torch.arange(5)
    y = u + torch.randn_like(u) * torch.rand(5)
    sums = Sums()
    sums.add(u, y)
    gain, shift = sums.fit()
    before, after = ((guess - y).square().mean((0, 1)) for guess in (u, gain * u + shift))
    assert (after <= before * (1 + 1e-12)).all()


def test_each_tick_is_fitted_on_what_earlier_corrections_leave() -> None:
    """So the run in which it was fitted is the run that it gives."""
    pipe, call = FLUX.build(), calls(1)[0]
    accelerate(pipe, UniformConfig(interval=3))
    pipe(**rewound(call))
    schedule, moments = report(pipe).to_schedule(), InOrder()
    with accelerated(pipe, ReplayConfig(schedule=schedule)), observed(moments):
        fitted = pipe(**rewound(call))[0]
    corrected = with_corrections(schedule, moments.coefficients(STEPS))
    accelerate(pipe, corrected)
    torch.testing.assert_close(
        torch.as_tensor(pipe(**rewound(call))[0]), torch.as_tensor(fitted), atol=1e-4, rtol=0
    )
    accelerate(pipe, schedule)
    assert (torch.as_tensor(pipe(**rewound(call))[0]) - torch.as_tensor(fitted)).abs().max() > 1e-3


def test_a_calibration_quantises_plans_and_corrects_and_its_file_says_all_of_it(tmp_path: Path) -> None:
    pipe = FLUX.build()
    schedule = cachequant.calibrate(pipe, calls(), HARSH, compute=0.5)
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
    """A layer that quantisation has shrunk and shifted is told by its sums, at the same inputs."""
    pipe = FLUX.build()
    accelerate(pipe, "uniform", interval=2, quantize="int8", keep_original=True)
    pipe(**rewound(calls(1)[0]))
    schedule = report(pipe).to_schedule()
    path, gain = "transformer_blocks.0.attn.to_q", 0.8
    layer = pipe.transformer.get_submodule(path)
    layer.weight.scale = layer.weight.scale * gain
    layer.bias.data *= gain
    detach(pipe)
    found = cachequant._layer_coefficients(pipe, calls(), {"transformer": pipe.transformer}, schedule)
    samples = len(calls()) * int(schedule.decisions.sum())
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
    pipe(**rewound(calls(1)[0]))
    ticks = report(pipe).to_schedule()
    corrected = with_corrections(ticks, {"transformer/all/shift": torch.zeros(STEPS, 1)})
    others = replace(ticks, producer={})

    psnrs = iter([[40.0, 40.0, 40.0], [41.0, 41.0, 30.0], [42.0, 42.0, 30.0], [42.0, 42.0, 42.0]])
    runs: Any = SimpleNamespace(psnrs=lambda config: torch.tensor(next(psnrs)))
    best = cachequant._Best(runs)
    best.offer("even", ticks)
    best.offer("planned", others)
    assert best.chosen is others
    best.offer("on two of three", corrected)
    assert best.chosen is others
    best.offer("on all", corrected)
    assert best.chosen is corrected
    assert best.reached == {"even": 40.0, "planned": 41.0, "on two of three": 42.0, "on all": 42.0}


def test_a_single_call_leaves_nothing_to_judge_by() -> None:
    with pytest.raises(ConfigError, match="at least two calls"):
        cachequant.calibrate(FLUX.build(), calls(1), "int8")


def test_an_error_in_a_calibration_puts_the_originals_back(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = FLUX.build()

    def failing(*args: Any) -> None:
        raise RuntimeError("half-way")

    monkeypatch.setattr(cachequant, "shadowed", failing)
    with pytest.raises(RuntimeError, match="half-way"):
        cachequant.calibrate(pipe, calls(), "int8", compute=0.5)
    assert torch.equal(FLUX.render(pipe, 0, STEPS), reference("FluxPipeline", 0, STEPS))
