"""Why calls of a denoiser are computed without being looked at."""

import torch

from diffcache.engine.branches import MAX_BRANCHES
from diffcache.engine.choices import Choices
from diffcache.engine.execution import Invocation
from diffcache.engine.progress import Progress
from diffcache.schedulers.errors import ScheduleError

GRADIENTS = "gradients enabled: run the loop under torch.no_grad()"
TRAINING = "training mode: call .eval() on the denoiser"
TOO_MANY_CALLS = "steps not observed: the noise scheduler was not stepped between calls"
SEVERAL_SAMPLES = "steps not observed: several samples are stepped one after another at the same timestep"
BEGUN_AGAIN = "a step was begun again after a call in it: call begin_step once for each step, before the calls of all passes and samples"
NO_LATENT = "no floating tensor among the denoiser's arguments"
KEPT_ATTENTION = (
    "an attention processor keeps what it computed in the last call, and the pipeline may read it"
)
BEFORE_THE_LOOP = "computed before the loop: the noise scheduler's timesteps were not set yet"
OTHER_BATCH = "per_sample: not the leading branch's batch size"


def obstacle_to(asked: Invocation, progress: Progress, calls: int) -> str | None:
    """Why a call cannot be reused, as far as it shows itself or the run does; None if nothing shows.

    Args:
        asked: the call.
        progress: where the run stands.
        calls: how many calls there have been in this tick before it.
    """
    if torch.is_grad_enabled():
        return GRADIENTS
    if asked.module.training:
        return TRAINING
    if calls >= MAX_BRANCHES:
        return TOO_MANY_CALLS
    if progress.lost:
        return BEGUN_AGAIN if progress.hand_written else SEVERAL_SAMPLES
    if not asked.call.latents:
        return NO_LATENT
    return None


def misfit(choices: Choices) -> str | None:
    """Why a call that may come before the loop is computed without being looked at: the method does not fit such a loop."""
    try:
        choices.scheduler()
    except ScheduleError:
        return BEFORE_THE_LOOP
    return None
