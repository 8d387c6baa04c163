"""A noise scheduler's list of timesteps: where a loop begins and ends in it, and where a time lies in it."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from diffcache.noise_schedulers.options import option_of


def timesteps_of(noise_scheduler: Any) -> Tensor | None:
    """Its list of timesteps, [n]; None where it has none."""
    timesteps = getattr(noise_scheduler, "timesteps", None)
    return timesteps if isinstance(timesteps, Tensor) and timesteps.ndim == 1 else None


def first_index_of(noise_scheduler: Any) -> int:
    """The index in its list of timesteps at which the loop begins; image-to-image pipelines set one above 0."""
    return getattr(noise_scheduler, "begin_index", None) or 0


def first_of(noise_scheduler: Any, num_steps: int) -> int:
    """The index in its list of timesteps at which a loop of so many steps begins, which ends with the list; 0 where no noise scheduler is known."""
    timesteps = timesteps_of(noise_scheduler)
    return 0 if timesteps is None else len(timesteps) - num_steps


def timesteps_before(noise_scheduler: Any, denoising_end: object) -> int | None:
    """How many timesteps a loop has from where it begins to `denoising_end`, as Diffusers counts them; None where it goes to the last one."""
    timesteps = timesteps_of(noise_scheduler)
    steps = option_of(noise_scheduler, "num_train_timesteps")
    if timesteps is None or not steps or not isinstance(denoising_end, float) or not 0 < denoising_end < 1:
        return None
    cutoff = round(steps - denoising_end * steps)
    left: list[float] = timesteps[first_index_of(noise_scheduler) :].tolist()
    return len([t for t in left if t >= cutoff])


def index_in_list(times: Iterable[object], noise_scheduler: Any) -> int | None:
    """The index of the first of `times` that is a view into the noise scheduler's list of timesteps; None if none is.

    Reads no tensor: it compares addresses in memory.
    """
    timesteps = timesteps_of(noise_scheduler)
    if timesteps is None:
        return None
    storage = timesteps.untyped_storage().data_ptr()
    for time in times:
        if not isinstance(time, Tensor) or time.untyped_storage().data_ptr() != storage:
            continue
        if time.numel() <= 1 or not any(time.stride()):  # one time, or one that is expanded over the batch
            return int(time.storage_offset() - timesteps.storage_offset())
    return None
