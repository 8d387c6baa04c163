"""Respacing: gives a noise scheduler other noise levels for a run that is about to begin."""

import copy
from collections.abc import Sequence
from typing import Any

import torch

from diffcache.noise_schedulers.quirks import timesteps_at


def stretched(sigmas: Sequence[float], final: float, shares: Sequence[float]) -> list[float]:
    """Noise levels whose steps are shortened to a share of what they would be (ERTACache, arXiv 2508.21091).

    With h_s = sigma_s - sigma_{s+1} and the new levels g: g_{s+1} = g_s - shares[s] h_s (g_s - final) / (sigma_s - final).
    So the part that a step leaves out is distributed over all later steps. The last step always ends at `final`.

    Args:
        sigmas: the nominal levels, falling, one for each step.
        final: the level at which the run ends.
        shares: for each step the share of its nominal length, in (0, 1]; that of the last step is ignored.

    Returns:
        The new levels, one for each step; exactly the nominal ones where all shares but the last are 1.
    """
    if all(share == 1 for share in shares[:-1]):
        return list(sigmas)
    levels = [sigmas[0]]
    for now, after, share in zip(sigmas, sigmas[1:], shares, strict=False):
        level = levels[-1]
        levels.append(level - share * (now - after) * (level - final) / (now - final))
    return levels


def prepared(noise_scheduler: Any, steps: int) -> Any:
    """A copy of a noise scheduler as it is in its last run, or as it would be in one of so many steps if it had none yet."""
    probe = copy.deepcopy(noise_scheduler)
    if getattr(probe, "num_inference_steps", None) is None:
        dynamic = getattr(getattr(probe, "config", None), "use_dynamic_shifting", False)
        probe.set_timesteps(steps, **({"mu": 1.0} if dynamic else {}))  # which moves levels, but not the last
    return probe


def respace(noise_scheduler: Any, sigmas: Sequence[float]) -> None:
    """Replaces the noise levels that `set_timesteps` has just made, and the timesteps with them; the final level stays.

    Args:
        noise_scheduler: is changed in place.
        sigmas: one noise level for each of its timesteps.

    Raises:
        ScheduleError: it keeps no noise levels, or its timesteps cannot follow them.
    """
    timesteps = timesteps_at(noise_scheduler, sigmas)
    levels = noise_scheduler.sigmas
    new = torch.tensor(sigmas, dtype=torch.float64).to(levels)
    noise_scheduler.sigmas = torch.cat([new, levels[-1:]])
    noise_scheduler.timesteps = timesteps
