"""Whether a noise scheduler adds fresh noise at its steps: found by trying them on a copy."""

from typing import Any

import torch

from diffcache.noise_schedulers.quirks import WITHOUT_NOISE, model_input, next_sample
from diffcache.noise_schedulers.timesteps import timesteps_of
from diffcache.noise_schedulers.trial import copied_to_cpu, nothing_drawn


def adds_fresh_noise(noise_scheduler: Any) -> bool:
    """Whether its steps draw random numbers though no option asks for it (ancestral, SDE, LCM).

    Two steps in the middle of the run are tried: some add noise in the middle only, some at every second evaluation.

    Args:
        noise_scheduler: right after `set_timesteps`; it is not changed. Where its steps cannot be tried, what is known of its class counts.
    """
    timesteps = timesteps_of(noise_scheduler)
    if timesteps is None:
        return False
    first = max(min(len(timesteps) // 2, len(timesteps) - 2), 0)
    try:
        with nothing_drawn() as generator:
            _step_twice(copied_to_cpu(noise_scheduler), first)
    except Exception:  # noqa: BLE001 - somebody else's step may ask for anything
        return generator.was_used or type(noise_scheduler).__name__ in WITHOUT_NOISE
    return generator.was_used


def _step_twice(noise_scheduler: Any, first: int) -> None:
    if hasattr(noise_scheduler, "set_begin_index"):
        noise_scheduler.set_begin_index(first)
    sample = torch.zeros(1, 1, 1, 1, device="cpu")
    for time in noise_scheduler.timesteps[first : first + 2]:
        output = model_input(noise_scheduler, sample, time)
        sample = next_sample(noise_scheduler, output, time, sample)
