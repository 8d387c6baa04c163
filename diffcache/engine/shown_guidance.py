"""What a run's steps show of guidance: its scale, where neither the pipeline nor the call tells it, and how much larger it makes the first velocity."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from diffcache.config import CacheConfig, RunFacts
from diffcache.engine.engine import Engine
from diffcache.engine.step_hindsight import seen
from diffcache.host.rows import is_doubled
from diffcache.noise_schedulers.step_calls import StepCall
from diffcache.schedulers.guidance import Guidance

TOLERANCE = 0.05
"""What the noise scheduler gets may differ by so much of it from plain guidance of what was returned: that may have been rounded."""

CHANGED = 1.25
"""The scale changes during a run if one step shows it so many times as large as another."""

ROUNDED = 0.2
"""A velocity shows nothing if rounding of the output may change it by so much of it, as that of predicted noise in bfloat16 near pure noise."""

CHANGES = (
    "the scale of guidance changes during the run, between {least:g} and {largest:g}, and the plan is made for {planned:g}: "
    "no error is expected, compare it with a full run"
)

Passes = tuple[Tensor, Tensor]


def passes_of(returned: Sequence[Tensor], guided: Tensor) -> Passes | None:
    """The first and the last pass of a tick, fp32, the same where there is one; None where these are no one or two passes.

    Args:
        returned: by each call, [batch, ...]; a single one with twice as many rows as `guided` holds two passes.
        guided: what the noise scheduler got, [batch, ...].
    """
    if len(returned) == 1 and len(returned[0]) == 2 * len(guided):
        returned = returned[0].chunk(2)
    if not 1 <= len(returned) <= 2 or any(one.shape != guided.shape for one in returned):
        return None
    return returned[0].float(), returned[-1].float()


def shown(passes: Passes, guided: Tensor) -> Tensor:
    """What a step shows of plain guidance (arXiv 2207.12598, equation 6), on the device, [3].

    These are the share of the second pass; what is left unexplained, and how far the passes are apart, both as a fraction of `guided`, squared.
    """
    first, second = passes
    apart, moved = second - first, guided.float() - first
    share = ((moved * apart).sum() / apart.square().sum()).nan_to_num()
    size = guided.float().square().sum()
    left, distance = (moved - share * apart).square().sum() / size, apart.square().sum() / size
    return torch.stack([share, left, distance])


def scale_of(found: Sequence[float]) -> float | None:
    """The scale of guidance that a step has shown, to one decimal; 1 where it got one pass as it was; None where it got something else.

    Which pass is the conditional one need not be known: with u + s * (c - u) it is that of the larger weight.

    Args:
        found: see `shown`.
    """
    share_of_second, unexplained, _ = found
    if not unexplained <= TOLERANCE**2:
        return None
    return round(max(share_of_second, 1 - share_of_second), 1)


def _is_clear(found: Sequence[float]) -> bool:
    """Whether passes are equal, because there is one, or so far apart that rounding hardly changes the scale."""
    return found[2] == 0 or found[2] > TOLERANCE**2


class GuidanceWatch:
    """Finds in a run's steps what the method depends on and nothing has told: the scale of guidance, and its amplification.

    What a step gets is compared with what the guidance passes have returned. The first step shows both, which reads the device once. Where the scale was not
    told, so does the first one of more passes, since guidance may begin later. What other steps show of the scale is read when the run is over.

    The denoiser is the run's only one. Where processes compute it together, nothing is asked: each might read another scale, by rounding, and
    plan otherwise.

    Args:
        engine: the denoiser's.
        config: the method.
        facts: that it has chosen by.
        is_doubled: its first call holds two guidance passes, or two pictures of one seed.

    Attributes:
        sees_steps: the loop steps with a noise scheduler that is observed.
        is_over: nothing is left to be found.
    """

    def __init__(self, engine: Engine, config: CacheConfig, facts: RunFacts, is_doubled: bool) -> None:
        self.engine, self.config, self.facts = engine, config, facts
        self.sees_steps = self.is_over = False
        self._is_told = facts.guidance.scale is not None
        self._is_doubled = is_doubled
        self._asked = 0  # passes of which the scale was asked
        self._steps_both: bool | None = None  # a step is of the samples of both passes
        self._later: list[Tensor] = []
        engine.returned = [] if engine.progress.shows_steps else None

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
        self.sees_steps, returned = True, self.engine.returned
        if self._is_told:
            self.engine.returned, self.is_over = None, True
        # In a dry run tensors have no values.
        if call is None or not returned or any(one.is_meta for one in returned):
            return None
        call = self._halved(returned, call)
        passes = passes_of(returned, call.output)
        if passes is None:
            return None
        count, found = sum(map(len, returned)) // len(call.output), shown(passes, call.output)
        if count <= self._asked:
            self._later.append(found)
            return None
        self._asked = count
        return self._shown(passes, found, noise_scheduler, call, count)

    def without_steps(self, tick: int) -> Guidance | None:
        """Guidance where a tick begins before any step was seen: a sampler of the loop's own has stepped. One pass is taken to be all.

        It sees no steps later, either, and what the passes return need not be kept.
        """
        self.engine.returned, self.is_over = None, True
        is_alone = tick == 1 and not self._is_doubled and len(self.engine.branches.known) == 1
        return replace(self.facts.guidance, scale=1.0) if is_alone and not self._is_told else None

    def note(self) -> str | None:
        """What is to be said at the end of the run: that the scale has changed; None where it has not."""
        planned = self.facts.guidance.scale
        found = torch.stack(self._later).tolist() if self._later and planned else []
        scales = [scale for scale in (scale_of(one) for one in found if _is_clear(one)) if scale is not None]
        self._later = []
        if planned is None or not scales:
            return None
        least, largest = min(planned, *scales), max(planned, *scales)
        if largest <= CHANGED * least:
            return None
        return CHANGES.format(least=least, largest=largest, planned=planned)

    def _halved(self, returned: Sequence[Tensor], call: StepCall) -> StepCall:
        """Of one sample, where a step is of both passes' samples, which are equal: so DiT's pipeline steps."""
        if self._steps_both is None:
            is_whole = len(returned) == 1 and len(returned[0]) == len(call.output)
            self._steps_both = is_whole and is_doubled(call.output)
        if not self._steps_both or len(call.output) % 2:
            return call
        return call._replace(output=call.output.chunk(2)[0], sample=call.sample.chunk(2)[0])

    def _shown(
        self, passes: Passes, found: Tensor, noise_scheduler: Any, call: StepCall, count: int
    ) -> Guidance | None:
        """What is new in a step of so many passes. The device is read once."""
        progress = self.engine.progress
        of_velocity, of_input = progress.timetable.output(progress.tick)
        sample = of_input * seen(noise_scheduler, call)
        first, second = ((one - sample) / of_velocity for one in passes)
        precision = torch.finfo(call.output.dtype).eps / of_velocity
        rounding = precision**2 * passes[0].square().sum()
        pairs = ((first, first), (second, second), (first, second))
        products = [(one * other).sum() for one, other in pairs]
        *of_scale, rounded, one, other, both = torch.cat([found, torch.stack([rounding, *products])]).tolist()
        guidance = self.facts.guidance
        scale = guidance.scale if self._is_told else scale_of(of_scale)
        if scale is None:
            return None
        now = replace(guidance, scale=scale)
        conditional, unconditional = (other, one) if of_scale[0] > 0.5 else (one, other)
        is_clear = rounded <= ROUNDED**2 * conditional
        if count == 2 and scale > 1 and is_clear and self.config.counts_amplification:
            now = now.showing(conditional, unconditional, both)
        return None if now == guidance else now
