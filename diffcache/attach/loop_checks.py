"""What a hand-written loop is given: checked, and said in one sentence where it cannot be."""

import math
import operator
from typing import Any

from torch import nn

from diffcache.host.components import denoisers_of, is_pipeline, refuse_no_denoiser
from diffcache.noise_schedulers.levels import Level, levels_of_loop
from diffcache.noise_schedulers.timesteps import first_index_of, first_of, timesteps_of
from diffcache.schedulers.errors import TargetError


def check_denoiser(module: Any, by: str = "denoising_run") -> None:
    """Refuses what a loop cannot run over, with TargetError; `by` is the function that was given it."""
    if is_pipeline(module):
        parts = " or ".join(f"pipe.{name}" for name in denoisers_of(module))
        raise TargetError(f"{by} takes the denoiser, not the pipeline around it: pass {parts}.")
    if not isinstance(module, nn.Module):
        raise TargetError(f"{by} takes a denoiser (torch.nn.Module), not a {type(module).__name__}.")
    refuse_no_denoiser(module, "the network that your loop denoises with")


def number_of_steps(num_steps: Any, noise_scheduler: Any, by: str = "denoising_run") -> int:
    """The number of steps of a loop; `by` is the function that was given it.

    Raises:
        TargetError: it is no whole number above 0, or not the number of the noise scheduler's timesteps, or of those from its begin index on.
    """
    try:
        count = operator.index(num_steps)
    except TypeError:
        count = 0
    if count < 1 or isinstance(num_steps, bool):
        raise TargetError(f"{by} needs a whole number of steps, one at least, not {num_steps!r}.")
    if noise_scheduler is None:
        return count
    timesteps = timesteps_of(noise_scheduler)
    if timesteps is None:
        raise TargetError(
            f"noise_scheduler= takes a noise scheduler of Diffusers' after set_timesteps, not a {type(noise_scheduler).__name__}."
        )
    if count not in (len(timesteps), len(timesteps) - first_index_of(noise_scheduler)):
        raise TargetError(
            f"the noise scheduler has {len(timesteps)} timesteps, and num_steps is {count}: call its set_timesteps first, and "
            "count model evaluations. Where the loop begins later, as in image-to-image, call its set_begin_index, too."
        )
    return count


def noise_levels(sigmas: Any, num_steps: int, noise_scheduler: Any) -> list[Level]:
    """What is known of each step of a loop (see `levels_of_loop`).

    Raises:
        TargetError: these are no finite numbers, some are negative, or they are fewer than steps.
    """
    if sigmas is None:
        return levels_of_loop(noise_scheduler, None)
    try:
        given = [float(sigma) for sigma in sigmas]
    except (TypeError, ValueError):
        given = []
    if len(given) < num_steps or not all(map(math.isfinite, given)) or min(given) < 0:
        raise TargetError(
            f"sigmas= takes one finite number, 0 or more, for each of the {num_steps} steps: pass them all, or leave it out."
        )
    return levels_of_loop(noise_scheduler, given, first_of(noise_scheduler, num_steps))
