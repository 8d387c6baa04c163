"""The scale of guidance as a run's first step shows it, where neither the pipeline nor the call tells it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from diffcache.config import CacheConfig, RunFacts
from diffcache.engine.engine import Engine
from diffcache.engine.step_hindsight import guided_velocity
from diffcache.noise_schedulers.step_calls import StepCall
from diffcache.noise_schedulers.timetable import Timetable
from diffcache.schedulers.steps import MODEL

TOLERANCE = 0.05
"""What the noise scheduler gets may differ by so much of it from plain guidance of what was stored: that may be in eight bits."""


def shown_scale(passes: Sequence[Tensor], guided: Tensor) -> float | None:
    """The scale with which plain guidance (arXiv 2207.12598, equation 6) makes a tensor of guidance passes. Reads the device once.

    Which pass is the conditional one need not be known: with u + s * (c - u) it is that of the larger weight.

    Args:
        passes: what each call returned, [batch, ...]; a single one with twice as many rows as `guided` holds two passes.
        guided: what the noise scheduler got, [batch, ...].

    Returns:
        To one decimal, and 1 where it got one pass as it was; None where it got something else.
    """
    if len(passes) == 1 and len(passes[0]) == 2 * len(guided):
        passes = passes[0].chunk(2)
    if not 1 <= len(passes) <= 2 or any(one.shape != guided.shape for one in passes):
        return None
    first, second = passes[0].float(), passes[-1].float()
    apart, moved = second - first, guided.float() - first
    share = ((moved * apart).sum() / apart.square().sum()).nan_to_num()
    left = (moved - share * apart).square().sum() / guided.float().square().sum()
    values: list[float] = torch.stack([share, left]).tolist()
    share_of_second, unexplained = values
    if not unexplained <= TOLERANCE**2:
        return None
    return round(max(share_of_second, 1 - share_of_second), 1)


class Unscaled(NamedTuple):
    """A denoiser in a run of which nothing has told the scale of guidance yet, although the method depends on it.

    It is the run's only one. Where processes compute it together, it is none of these: each might read another scale, by rounding, and plan otherwise.

    Attributes:
        engine: the denoiser's.
        config: the method.
        facts: that it has chosen by.
        is_doubled: its first call holds two guidance passes, or two pictures of one seed.
    """

    engine: Engine
    config: CacheConfig
    facts: RunFacts
    is_doubled: bool

    def scale_in(
        self, times: Timetable, tick: int, noise_scheduler: Any, call: StepCall | None
    ) -> float | None:
        """The scale that a step shows; None where it is not the first, or does not tell.

        Args:
            times: of the run.
            tick: of the step.
            noise_scheduler: that is about to step.
            call: its step; None where it is not understood.
        """
        stores = [branch.stores.get(MODEL) for branch in self.engine.branches.known]
        passes = [store.newest(0)[0] for store in stores if store is not None and store.last_computed(0) == 0]
        self.engine.setup.format.memory.end_call()
        if call is None or tick or len(passes) < len(stores):
            return None
        return shown_scale(passes, guided_velocity(times, noise_scheduler, tick, call))

    def scale_at(self, tick: int) -> float | None:
        """The scale where a tick begins before any step was seen: a sampler of the loop's own has stepped. One pass is taken to be all."""
        is_alone = tick == 1 and not self.is_doubled and len(self.engine.branches.known) == 1
        return 1.0 if is_alone else None
