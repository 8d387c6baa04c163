"""How much better the weights of a plan could be: learned by gradients through whole runs, which no user would do."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from diffcache.evals.harness.calls import call_of
from diffcache.evals.harness.facts import run_facts
from diffcache.evals.harness.unseen import judged_on
from diffcache.evals.testbeds import splits, zoo
from diffcache.noise_schedulers.levels import Level, levels_of
from diffcache.noise_schedulers.quirks import model_input
from diffcache.prediction.hindsight import LARGEST_RATIO
from diffcache.recipes.run_plans import course_of
from diffcache.recipes.trajectory import TrajectoryConfig
from diffcache.trajectory.error_model import WINDOW

LEARNED_ON = 4
"""Samples, whose prompts and seeds are not those of the samples that are scored."""

RATE, ITERATIONS = 1e-2, 40
"""Of Adam; the rate falls to 0 in a straight line."""


class Weights(NamedTuple):
    """What the noise scheduler gets at each tick, as weighted sums of what computed ticks returned.

    Attributes:
        ticks: that are computed.
        values: [ticks, computed].
        may_change: where a velocity is among the newest of a tick, [ticks, computed].
    """

    ticks: tuple[int, ...]
    values: Tensor
    may_change: Tensor


def learned(testbed: str, steps: int, speedup: float, samples: int) -> dict[str, Any]:
    """The error of the denoiser's result in dB below the result, before and after learning; each the mean over samples.

    Returns:
        "learned_on" and "others": both figures of the samples that were learned on, and of others.
    """
    pipe = zoo.load(testbed)

    def call(use: splits.Use, count: int) -> Callable[[], dict[str, Any]]:
        return lambda: call_of(testbed, use, steps, count)

    asked = {"learned_on": call("covariance", LEARNED_ON), "others": call("choose", samples)}
    fitted = asked["learned_on"]
    with judged_on(testbed):
        start = planned_weights(pipe, fitted(), speedup)
    for part in pipe.components.values():
        if isinstance(part, nn.Module):
            part.requires_grad_(False)
    with torch.no_grad():
        full = {name: result_of(pipe, ask()) for name, ask in asked.items()}

    def nearness(weights: Weights) -> dict[str, float]:
        with torch.no_grad():
            near = {
                name: decibels(result_of(pipe, ask(), weights), full[name]) for name, ask in asked.items()
            }
        return {name: round(float(each.mean()), 2) for name, each in near.items()}

    before = nearness(start)
    change = torch.zeros_like(start.values, requires_grad=True)
    adam = torch.optim.Adam([change], lr=RATE, betas=(0.8, 0.95))
    for i in range(ITERATIONS):
        for group in adam.param_groups:
            group["lr"] = RATE * (1 - i / ITERATIONS)
        weights = start._replace(values=start.values + change * start.may_change)
        loss = -decibels(result_of(pipe, fitted(), weights), full["learned_on"]).mean()
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
    after = nearness(start._replace(values=(start.values + change * start.may_change).detach()))
    return {"steps": steps, "ticks": len(start.ticks), **{name: [before[name], after[name]] for name in full}}


def planned_weights(pipe: Any, call: dict[str, Any], speedup: float) -> Weights:
    """Those with which `speedup=` predicts and corrects."""
    config, run = TrajectoryConfig(speedup=speedup), run_facts(pipe, call)
    plan = config.plan(run, speedup)
    errors = config.known.error_models(course_of(run), LARGEST_RATIO)(plan.caution, plan.corrects)
    values = torch.from_numpy(errors.weights(plan.ticks))
    newest = np.searchsorted(plan.ticks, np.arange(len(values)), side="right")
    age = newest[:, None] - 1 - np.arange(len(plan.ticks))
    return Weights(plan.ticks, values, torch.from_numpy((age >= 0) & (age <= WINDOW)))


def result_of(pipe: Any, call: dict[str, Any], weights: Weights | None = None) -> Tensor:
    """What a run leaves before it is decoded, [samples, ...]; in full, or with these weights. Gradients flow through it."""
    run = type(pipe).__call__
    while hasattr(run, "__wrapped__"):  # it is decorated with torch.no_grad
        run = run.__wrapped__
    with _weighted(pipe, weights):
        found: Tensor = run(pipe, **{**call, "output_type": "latent"})[0]
    return found


def decibels(result: Tensor, full: Tensor) -> Tensor:
    """How far below the full result's mean square the error's is, in dB for each sample."""
    error, size = (each.double().flatten(1).square().mean(dim=1) for each in (result - full, full))
    return -10 * torch.log10(error / size)


@contextmanager
def _weighted(pipe: Any, weights: Weights | None) -> Iterator[None]:
    """Between these, the noise scheduler gets weighted sums of velocities; the denoiser is called at computed ticks only."""
    if weights is None:
        yield
        return
    noise_scheduler, denoiser = pipe.scheduler, getattr(pipe, "transformer", None) or pipe.unet
    step, forward = noise_scheduler.step, denoiser.forward
    velocities, newest = list[Tensor](), dict[str, Any]()
    levels, tick = list[Level](), 0

    def called(*args: Any, **kwargs: Any) -> Any:
        if tick in weights.ticks:
            newest["output"] = forward(*args, **kwargs)
        return newest["output"]

    def stepped(output: Tensor, timestep: Any, sample: Tensor, *args: Any, **kwargs: Any) -> Any:
        nonlocal tick, levels
        levels = levels or levels_of(noise_scheduler)
        of_velocity, of_input = levels[tick].parametrisation
        seen = model_input(noise_scheduler, sample, timestep).double()
        given, *variance = torch.split(output, sample.shape[1], dim=1)
        if tick in weights.ticks:
            velocities.append((given.double() - of_input * seen) / of_velocity)
        row = zip(weights.values[tick], velocities, strict=False)
        made = of_velocity * sum(weight * velocity for weight, velocity in row) + of_input * seen
        tick += 1
        return step(torch.cat([made.to(output.dtype), *variance], dim=1), timestep, sample, *args, **kwargs)

    with patch.object(noise_scheduler, "step", stepped), patch.object(denoiser, "forward", called):
        yield
