"""How near weighted sums of computed velocities can come to those of reused ticks, if more were known of the pipeline, or of the very picture."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from diffcache.evals.experiments.learned_weights import planned_weights
from diffcache.evals.harness.calls import call_of
from diffcache.evals.harness.unseen import judged_on
from diffcache.evals.testbeds import zoo
from diffcache.host.components import denoisers_of
from diffcache.profiling.recording.calling import accelerated
from diffcache.profiling.recording.trajectories import FULL
from diffcache.profiling.recording.velocities import Velocities, trajectory_of
from diffcache.trajectory.error_model import WINDOW
from diffcache.trajectory.gaussian import BETWEEN, conditional_weights
from diffcache.trajectory.kernel import Array

FITTED_TO = 12
"""Samples whose prompts and seeds are not those of the samples that are scored."""

BLOCKS = ("transformer_blocks", "single_transformer_blocks", "blocks", "layers")
"""What Diffusers calls the blocks of its transformers, in the order in which they are called."""


def limits(testbed: str, steps: int, speedup: float, samples: int) -> dict[str, Any]:
    """How many dB smaller the errors of predictions are than with the universal weights, with the ticks of `speedup=`. All predictions are of full runs.

    Returns:
        "others": with weights that are fitted to other samples; "scored": to the samples that are scored; "each": to each of these by
        itself. "half": how many dB less is missed of what the denoiser's blocks add if the first half of them is computed, with weights that are fitted to
        other samples; None where the denoiser is no row of blocks.
    """
    pipe = zoo.load(testbed)
    with judged_on(testbed):
        plan = planned_weights(pipe, call_of(testbed, "search", steps, 1), speedup)
    others = _recorded(pipe, call_of(testbed, "search", steps, FITTED_TO))
    scored = _recorded(pipe, call_of(testbed, "choose", steps, samples))

    def left(name: str, fitted_to: Array) -> float:
        return missed(scored[name], fitted_weights(fitted_to, plan.ticks), plan.ticks)

    def common(covariances: Array) -> Array:
        total: Array = covariances.sum(axis=0, keepdims=True)
        return total

    velocities, values = scored["velocities"], plan.values.numpy()[None]
    universal = missed(velocities, values, plan.ticks)
    fits = {"others": common(others["velocities"]), "scored": common(velocities), "each": velocities}
    found: dict[str, float | None] = {
        name: _decibels(universal, left("velocities", fit)) for name, fit in fits.items()
    }
    found["half"] = None
    if "half" in scored:
        whole, half = (left(name, common(others[name])) for name in ("whole", "half"))
        found["half"] = _decibels(whole, half)
    return {"steps": steps, "ticks": len(plan.ticks), **found}


def fitted_weights(covariances: Array, ticks: Sequence[int]) -> Array:
    """The best weights of the newest computed ticks at each tick: [covariances, ticks, computed], by [covariances, ticks, ticks]."""
    weights = np.zeros((*covariances.shape[:2], len(ticks)))
    for tick in range(covariances.shape[1]):
        newest = int(np.searchsorted(ticks, tick, side="right"))
        window = slice(max(newest - WINDOW, 0), newest)
        for weight, covariance in zip(weights, covariances, strict=True):
            weight[tick, window] = conditional_weights(covariance, ticks[window], [tick], BETWEEN)[:, 0]
    return weights


def missed(covariances: Array, weights: Array, ticks: Sequence[int]) -> float:
    """The mean square that predictions miss at reused ticks, summed over samples and ticks.

    Args:
        covariances: of each sample, [samples, ticks, ticks].
        weights: of all samples, or of each, [1 or samples, ticks, computed].
        ticks: that are computed.
    """
    errors = np.tile(np.eye(covariances.shape[1]), (len(covariances), 1, 1))
    errors[:, :, ticks] -= weights
    reused = np.delete(errors, ticks, axis=1)
    return float(np.einsum("sti,sij,stj->", reused, covariances, reused))


def _decibels(before: float, after: float) -> float:
    return round(10 * math.log10(before / after), 2)


def _recorded(pipe: Any, call: dict[str, Any]) -> dict[str, Array]:
    """Of a full run the covariances of each sample, [samples, ticks, ticks]: "velocities", and what all blocks ("whole") and the last half of them ("half") add."""
    (denoiser,) = denoisers_of(pipe).values()
    with accelerated(pipe, FULL), _hidden(denoiser) as hidden:
        run = trajectory_of(pipe, call, Velocities())
    ticks, samples = len(run.velocities), len(run.velocities[0][0])
    found = {"velocities": covariances_of([velocity for (velocity,) in run.velocities], ticks, samples)}
    if hidden:
        first, middle, last = (hidden[i::3] for i in range(3))
        for name, start in (("whole", first), ("half", middle)):
            added = [b - a for a, b in zip(start, last, strict=True)]
            found[name] = covariances_of(added, ticks, samples)
    return found


def covariances_of(tensors: Sequence[Tensor], ticks: int, samples: int) -> Array:
    """Of each sample, [samples, ticks, ticks].

    Args:
        tensors: [rows, ...]. For guidance there are twice as many rows as samples, or twice as many tensors as ticks.
        ticks: of the run.
        samples: of the run.
    """
    each = [one.double().reshape(-1, samples, *one.shape[1:]).transpose(0, 1).flatten(1) for one in tensors]
    calls = len(each) // ticks
    trajectory = torch.stack([torch.cat(each[i : i + calls], dim=1) for i in range(0, len(each), calls)])
    found: Array = torch.einsum("asn,bsn->sab", trajectory, trajectory).numpy()
    return found


@contextmanager
def _hidden(denoiser: nn.Module) -> Iterator[list[Tensor]]:
    """Three hidden states of each call: before the blocks, in the middle of them, and after them; none where there are no blocks."""
    blocks = [block for name in BLOCKS for block in getattr(denoiser, name, ())]
    kept = list[Tensor]()

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        kept.append(args[0] if args else kwargs["hidden_states"])

    def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        kept.append(output[-1] if isinstance(output, tuple) else output)

    hooks = []
    if blocks:
        hooks = [
            blocks[0].register_forward_pre_hook(before, with_kwargs=True),
            *(blocks[i].register_forward_hook(after) for i in (len(blocks) // 2 - 1, -1)),
        ]
    try:
        yield kept
    finally:
        for hook in hooks:
            hook.remove()
