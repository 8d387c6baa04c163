"""Regimes: what a denoiser predicts, its noise scheduler, guidance and the number of steps, and how a cache does in each.

In every regime a cached run is compared with a plain run of the same noise scheduler that computes as many ticks. What
`trajectory` knows before a run was learned without the regime's testbed.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import diffusers
import torch

from diffcache.config import CacheConfig
from diffcache.evals.harness.cell import Cell
from diffcache.evals.harness.unseen import judged_on
from diffcache.evals.testbeds import splits, zoo
from diffcache.evals.testbeds.repredicting import sd_predicting
from diffcache.recipes.builtin import DEFAULT
from diffcache.recipes.trajectory import TrajectoryConfig

METHODS: Mapping[str, CacheConfig] = {"default": DEFAULT, "speedup=2": TrajectoryConfig(speedup=2)}

NOISE_SCHEDULERS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "DPM++ 2M trailing": ("DPMSolverMultistepScheduler", {"timestep_spacing": "trailing"}),
    "DPM++ 2M Karras": (
        "DPMSolverMultistepScheduler",
        {"use_karras_sigmas": True, "timestep_spacing": "leading", "steps_offset": 1},
    ),
    "DPM++ 2M thresholding": (
        "DPMSolverMultistepScheduler",
        {"timestep_spacing": "leading", "thresholding": True, "sample_max_value": 3.0},
    ),
    "DPM singlestep": ("DPMSolverSinglestepScheduler", {"solver_order": 2}),
    "DDIM leading": (
        "DDIMScheduler",
        {"timestep_spacing": "leading", "steps_offset": 1, "clip_sample": False},
    ),
    "DDIM clipped": (
        "DDIMScheduler",
        {"timestep_spacing": "leading", "clip_sample": True, "clip_sample_range": 3.0},
    ),
    "DDIM zero SNR": (
        "DDIMScheduler",
        {"timestep_spacing": "trailing", "rescale_betas_zero_snr": True, "clip_sample": False},
    ),
    "PNDM": ("PNDMScheduler", {"skip_prk_steps": True, "steps_offset": 1, "timestep_spacing": "leading"}),
    "Euler leading": ("EulerDiscreteScheduler", {"timestep_spacing": "leading", "steps_offset": 1}),
    "Euler trailing": ("EulerDiscreteScheduler", {"timestep_spacing": "trailing"}),
    "Euler Karras": ("EulerDiscreteScheduler", {"use_karras_sigmas": True}),
    "UniPC": ("UniPCMultistepScheduler", {"timestep_spacing": "linspace"}),
    "Heun": ("HeunDiscreteScheduler", {}),
    "KDPM2": ("KDPM2DiscreteScheduler", {}),
    "EDM Euler": ("EDMEulerScheduler", {"sigma_data": 1.0, "sigma_min": 0.03, "sigma_max": 14.6}),
    "EDM DPM++ 2M": (
        "EDMDPMSolverMultistepScheduler",
        {"sigma_data": 1.0, "sigma_min": 0.03, "sigma_max": 14.6},
    ),
}
"""Of the sd testbed, by name: the class, and what of the testbed's own configuration is changed."""

FLOWS: Mapping[str, Callable[[], Any]] = {
    "flux, its own sigmas": lambda: zoo.load("flux"),
    "flux, down to sigma_min": lambda: zoo.load("flux"),
    "wan, UniPC": lambda: zoo.load("wan"),
    "wan, Euler down to sigma_min": lambda: _with_scheduler(
        zoo.load("wan"), diffusers.FlowMatchEulerDiscreteScheduler(shift=2.0)
    ),
    "wan, Heun": lambda: _with_scheduler(
        zoo.load("wan"), diffusers.FlowMatchHeunDiscreteScheduler(shift=2.0)
    ),
}

NO_SAMPLE = ("PNDM", "KDPM2", "EDM Euler", "EDM DPM++ 2M")
"""Noise schedulers that take no predicted sample."""

VELOCITY_ONLY = ("DDIM zero SNR", "EDM Euler", "EDM DPM++ 2M")
"""Where pure noise is the first input a predicted noise says nothing; EDM's network is one kind only."""


@dataclass(frozen=True)
class Regime:
    """One cell.

    Attributes:
        prediction: "flow", "v_prediction", "epsilon" or "sample".
        noise_scheduler: a name in `NOISE_SCHEDULERS` or `FLOWS`.
        guidance: a scale, "interval" (5, from 20 to 70 % of the steps) or "rescale" (5, rescaled by 0.7).
        steps: of the full run.
    """

    prediction: str
    noise_scheduler: str
    guidance: str
    steps: int


WHOLE = (*FLOWS, "DPM++ 2M trailing", "DPM++ 2M Karras", "DDIM leading", "Euler leading", "EDM Euler")
"""Noise schedulers with which every guidance and every number of steps is tried."""


def regimes() -> Iterator[Regime]:
    """All of them: each guidance in 25 steps, each number of steps at guidance 5.

    With other noise schedulers than `WHOLE`, and where one network is rewritten to predict something else once more, fewer.
    """
    for prediction, name in _models():
        whole = name in WHOLE and (prediction in ("flow", "epsilon") or name in VELOCITY_ONLY)
        guidances = ("1", "3", "5", "7.5", "interval", "rescale") if whole else ("5", "7.5")
        lengths = (8, 12, 20, 25, 50) if whole else (12, 25)
        known = [g for g in guidances if prediction != "flow" or _has_guidance(name, g)]
        cells = [(guidance, 25) for guidance in known] + [("5", steps) for steps in lengths]
        for guidance, steps in dict.fromkeys(cells):
            yield Regime(prediction, name, guidance, steps)


def measure(regime: Regime, samples: int, use: splits.Use = "choose") -> dict[str, Any]:
    """One regime's figures: for each method its ticks, and PSNR in dB of it and of as many plain ticks to the full run."""
    pipe = _pipeline(regime.prediction, regime.noise_scheduler)
    seed = splits.PARTS[use].seed
    cell = Cell(pipe, lambda steps: _call(pipe, regime, steps, samples, seed), regime.steps)
    found: dict[str, Any] = asdict(regime)
    for name, config in METHODS.items():
        with judged_on(_testbed(regime)):
            run = cell.method(config)
        ticks = len(run.report.computed_ticks)
        steps = _steps_with(pipe, regime, ticks)
        found[name] = {
            "ticks": ticks,
            "of": run.report.num_ticks,
            "psnr": run.median,
            "fewer_steps": cell.fewer_steps(steps).median,
            "notes": run.report.notes,
        }
    return found


def _testbed(regime: Regime) -> str:
    return regime.noise_scheduler.split(",")[0] if regime.prediction == "flow" else "sd"


def _models() -> Iterator[tuple[str, str]]:
    for name in FLOWS:
        yield "flow", name
    for prediction in ("v_prediction", "epsilon", "sample"):
        for name in NOISE_SCHEDULERS:
            left_out = (prediction == "sample" and name in NO_SAMPLE) or (
                prediction != "v_prediction" and name in VELOCITY_ONLY
            )
            if not left_out:
                yield prediction, name


def _has_guidance(name: str, guidance: str) -> bool:
    return guidance != "rescale" and (guidance != "interval" or name.startswith("wan"))


@lru_cache(maxsize=1)
def _pipeline(prediction: str, name: str) -> Any:
    if prediction == "flow":
        return FLOWS[name]()
    kind, options = NOISE_SCHEDULERS[name]
    pipe = sd_predicting(prediction, edm=name.startswith("EDM"))  # type: ignore[arg-type]
    config = {**pipe.scheduler.config, **options}
    return _with_scheduler(pipe, getattr(diffusers, kind).from_config(config))


def _with_scheduler(pipe: Any, noise_scheduler: Any) -> Any:
    pipe.scheduler = noise_scheduler
    return pipe


def _call(pipe: Any, regime: Regime, steps: int, samples: int, seed: int) -> dict[str, Any]:
    """The pipeline's arguments in a regime."""
    testbed = _testbed(regime)
    call = zoo.sample_call(testbed, seed, steps, samples)
    scale = 5.0 if regime.guidance in ("interval", "rescale") else float(regime.guidance)
    call = zoo.guided(testbed, call, scale)
    if regime.guidance == "rescale":
        call["guidance_rescale"] = 0.7
    if regime.guidance == "interval":
        call["callback_on_step_end"] = _guided_between(round(0.2 * steps), round(0.7 * steps), scale)
    if regime.noise_scheduler == "flux, down to sigma_min":
        levels = pipe.scheduler
        call["sigmas"] = torch.linspace(levels.sigma_max, levels.sigma_min, steps).tolist()
    return call


def _guided_between(first: int, last: int, scale: float) -> Callable[..., dict[str, Any]]:
    """A callback that guides from one step to before another, and only looks at the conditional output elsewhere.

    The unconditional pass is computed all the same, so that all steps look alike to the pipeline.
    """

    def callback(pipe: Any, step: int, time: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        pipe._guidance_scale = scale if first <= step + 1 < last else 1.0 + 1e-6
        return tensors

    return callback


def _steps_with(pipe: Any, regime: Regime, ticks: int) -> int:
    """The fewest steps in which the noise scheduler calls the denoiser at least so many times."""
    if regime.prediction == "flow" and "Heun" not in regime.noise_scheduler:
        return ticks
    for steps in range(1, ticks + 1):
        pipe.scheduler.set_timesteps(steps)
        if len(pipe.scheduler.timesteps) >= ticks:
            return steps
    return ticks
