"""The scale of guidance as a run's steps show it, where neither the pipeline nor the call tells it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from diffcache.config import CacheConfig, RunFacts
from diffcache.engine.engine import Engine
from diffcache.noise_schedulers.step_calls import StepCall

TOLERANCE = 0.05
"""What the noise scheduler gets may differ by so much of it from plain guidance of what was returned: that may have been rounded."""

CHANGED = 1.25
"""The scale changes during a run if one step shows it so many times as large as another."""

CHANGES = (
    "the scale of guidance changes during the run, between {least:g} and {largest:g}, and the plan is made for {planned:g}: "
    "no error is expected, compare it with a full run"
)


def shown(passes: Sequence[Tensor], guided: Tensor) -> Tensor | None:
    """What a step shows of plain guidance (arXiv 2207.12598, equation 6), on the device, [3].

    These are the share of the second pass; what is left unexplained, and how far the passes are apart, both as a fraction of `guided`, squared.

    Args:
        passes: what each call returned, [batch, ...]; a single one with twice as many rows as `guided` holds two passes.
        guided: what the noise scheduler got, [batch, ...].

    Returns:
        None where these are no one or two passes.
    """
    if len(passes) == 1 and len(passes[0]) == 2 * len(guided):
        passes = passes[0].chunk(2)
    if not 1 <= len(passes) <= 2 or any(one.shape != guided.shape for one in passes):
        return None
    first, second = passes[0].float(), passes[-1].float()
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


class ScaleWatch:
    """Finds the scale of guidance in a run's steps, where nothing has told it although the method depends on it.

    What a step gets is compared with what the guidance passes have returned. The first step shows the scale, which reads the device once. So does the first
    one of more passes, since guidance may begin later. What other steps show is read when the run is over.

    The denoiser is the run's only one. Where processes compute it together, nothing is asked: each might read another scale, by rounding, and
    plan otherwise.

    Args:
        engine: the denoiser's.
        config: the method.
        facts: that it has chosen by.
        is_doubled: its first call holds two guidance passes, or two pictures of one seed.

    Attributes:
        sees_steps: the loop steps with a noise scheduler that is observed.
    """

    def __init__(self, engine: Engine, config: CacheConfig, facts: RunFacts, is_doubled: bool) -> None:
        self.engine, self.config, self.facts = engine, config, facts
        self.sees_steps = False
        self._is_doubled = is_doubled
        self._asked = 0  # passes of which the scale was asked
        self._later: list[Tensor] = []
        engine.returned = [] if engine.progress.shows_steps else None

    def stepping(self, call: StepCall | None) -> float | None:
        """A scale that a step shows, and the method is to choose with; None where it goes on as before.

        Args:
            call: of the step that is about to be made; None where it is not understood.
        """
        self.sees_steps, passes = True, self.engine.returned
        # In a dry run tensors have no values.
        if call is None or not passes or any(one.is_meta for one in passes):
            return None
        found = shown(passes, call.output)
        if found is None:
            return None
        count = sum(map(len, passes)) // len(call.output)
        if count > self._asked:
            self._asked = count
            return scale_of(found.tolist())
        self._later.append(found)
        return None

    def without_steps(self, tick: int) -> float | None:
        """The scale where a tick begins before any step was seen: a sampler of the loop's own has stepped. One pass is taken to be all.

        It sees no steps later, either, and what the passes return need not be kept.
        """
        self.engine.returned = None
        is_alone = tick == 1 and not self._is_doubled and len(self.engine.branches.known) == 1
        return 1.0 if is_alone else None

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
