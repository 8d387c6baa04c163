"""Looks at a run's steps for what its method depends on and nothing has told: the scale of guidance, and how much larger it makes the first velocity."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from diffcache.config import CacheConfig, RunFacts
from diffcache.engine.engine import Engine
from diffcache.engine.shown_guidance import PlainGuidance, Sizes, passes_of, plain_guidance, velocity_sizes
from diffcache.engine.step_correction import denoiser_input
from diffcache.host.conventions import UNCONDITIONAL
from diffcache.host.rows import is_doubled
from diffcache.noise_schedulers.step_calls import StepCall
from diffcache.schedulers.guidance import Guidance

ROUNDED = 0.2
"""If rounding may change a velocity by more than this fraction of its size, the step shows no amplification. It may for predicted noise in bfloat16 near pure noise."""


class GuidanceWatch:
    """Finds the scale of guidance and its amplification in the steps of a run.

    What a step gets is compared with what the guidance passes have returned. The first step shows the amplification, if it is one from pure noise, and the scale if
    that was not told. In this case the scale is read again at the first step that has more passes, because guidance may begin later. The device is read at these
    steps. What other steps show of the scale is read when the run is over.

    The denoiser is the run's only one. Where processes compute it together, nothing is asked: each might read another scale, by rounding, and
    plan otherwise.

    Args:
        engine: the denoiser's.
        config: the method.
        facts: what the method knew when it chose.
        is_doubled: its first call holds two guidance passes, or two pictures of one seed.
        is_conditional_first: of two passes in one call, if the step does not tell.

    Attributes:
        sees_steps: the loop steps with a noise scheduler that is observed.
        is_over: nothing is left to be found.
    """

    def __init__(
        self,
        engine: Engine,
        config: CacheConfig,
        facts: RunFacts,
        is_doubled: bool,
        is_conditional_first: bool,
    ) -> None:
        self.engine, self.config, self.facts = engine, config, facts
        self.sees_steps = self.is_over = False
        self._knows_scale = facts.guidance.scale is not None
        self._is_doubled, self._is_conditional_first = is_doubled, is_conditional_first
        self._asked = 0  # passes of which the scale was asked
        self._steps_both: bool | None = None  # a step is of the samples of both passes
        self._later: list[Tensor] = []
        if engine.progress.shows_steps:
            engine.returned.keep()

    @staticmethod
    def is_needed(config: CacheConfig, guidance: Guidance) -> bool:
        """Whether a method depends on more of guidance than is told."""
        if guidance.scale is None:
            return config.counts_guidance
        return config.counts_amplification and guidance.scale > 1

    def stepping(self, noise_scheduler: Any, call: StepCall | None) -> Guidance | None:
        """Guidance as a step shows it, and the method is to choose with it; None where it goes on as before.

        Args:
            noise_scheduler: that is about to step.
            call: of the step; None where it is not understood.
        """
        self.sees_steps, returned = True, self.engine.returned.take()
        if self._knows_scale:
            self.end()
        # In a dry run tensors have no values.
        if call is None or not returned or any(output.is_meta for _, output in returned):
            return None
        outputs = [output for _, output in returned]
        call = self._halved(outputs, call)
        passes = passes_of(outputs, call.output)
        if passes is None:
            return None
        count, progress = sum(map(len, outputs)) // len(call.output), self.engine.progress
        timetable, tick = progress.timetable, progress.tick
        shows_amplification = (
            count == 2 and self.config.counts_amplification and timetable.moment(tick).is_pure_noise
        )
        if self._knows_scale and not shows_amplification:
            return None
        found = plain_guidance(passes, call.output)
        if count <= self._asked:
            self._later.append(found)
            return None
        self._asked = count
        if not shows_amplification:
            return self._new(PlainGuidance(*found.tolist()))
        sizes = velocity_sizes(passes, timetable.parametrisation(tick), denoiser_input(noise_scheduler, call))
        numbers = torch.cat([found, sizes]).tolist()
        is_first = self._is_conditional_first if len(outputs) == 1 else UNCONDITIONAL not in returned[0][0]
        return self._new(PlainGuidance(*numbers[:3]), Sizes(*numbers[3:]), is_first)

    def without_steps(self, tick: int) -> Guidance | None:
        """Guidance where a tick begins before any step was seen: a sampler of the loop's own has stepped. One pass is taken to be all."""
        self.end()
        is_alone = tick == 1 and not self._is_doubled and len(self.engine.branches.known) == 1
        return replace(self.facts.guidance, scale=1.0) if is_alone and not self._knows_scale else None

    def end(self) -> None:
        """Nothing is left to be found, and what the passes return need not be kept."""
        self.engine.returned.stop()
        self.is_over = True

    def later_scales(self) -> list[float]:
        """What steps have shown of the scale since the last one that was planned with. The device is read."""
        later, self._later = self._later, []
        every = [PlainGuidance(*numbers) for numbers in torch.stack(later).tolist()] if later else []
        return [one.scale for one in every if one.is_clear and one.scale is not None]

    def _halved(self, outputs: Sequence[Tensor], call: StepCall) -> StepCall:
        """The step's call for one sample. DiT's pipeline steps the samples of both passes, which are equal, in one batch."""
        if self._steps_both is None:
            is_whole = len(outputs) == 1 and len(outputs[0]) == len(call.output)
            self._steps_both = is_whole and is_doubled(call.output)
        if not self._steps_both or len(call.output) % 2:
            return call
        return call._replace(output=call.output.chunk(2)[0], sample=call.sample.chunk(2)[0])

    def _new(
        self, found: PlainGuidance, sizes: Sizes | None = None, is_first: bool = True
    ) -> Guidance | None:
        """Guidance with what a step shows of it; None where that is nothing new.

        Args:
            found: of the step.
            sizes: of the velocities of two passes, where they show the amplification.
            is_first: the first of them is the conditional one, if the step does not tell.
        """
        before, shows_scale = self.facts.guidance, found.scale is not None
        if not self._knows_scale and not shows_scale:
            return None
        if not self._knows_scale:
            self.engine.decider.observer.guided(found.weight, conditional_first=found.is_conditional_first)
        with_scale = replace(before, scale=found.scale) if shows_scale else before
        after = before if self._knows_scale else with_scale
        if sizes is not None and after.counted > 1:
            is_first = found.is_conditional_first if shows_scale else is_first
            conditional, unconditional = (
                (sizes.first, sizes.second) if is_first else (sizes.second, sizes.first)
            )
            if sizes.rounding <= ROUNDED**2 * conditional:
                # The scale that a step shows is nearer to the truth than the one that was told: a pipeline may change it, or have several.
                after = replace(after, shown=with_scale.showing(conditional, unconditional, sizes.both).shown)
        return None if after == before else after
