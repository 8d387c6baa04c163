"""The scales of guidance that a run was seen to guide with, and what its report says of them."""

from collections.abc import Sequence

from diffcache.config import CacheConfig
from diffcache.reports.records import RunRecord
from diffcache.schedulers.guidance import TYPICAL_SCALE

CHANGED = 1.25
"""The scale changes during a run if one step shows it so many times as large as another."""

CHANGES = (
    "the scale of guidance changes during the run, between {least:g} and {largest:g}. The plan was made for {planned:g}, so that this report "
    "estimates no error: compare the result with a full run's"
)
ASSUMED = f"the scale of guidance could not be read, and {TYPICAL_SCALE:g} is assumed, which is usual: pass amplification=, or compare with a full run"


class ScalesSeen:
    """Of a run whose method may plan with the scale of guidance."""

    def __init__(self) -> None:
        self._scales = list[float]()
        self._counts = self._assumes = False

    def counts_for(self, config: CacheConfig) -> None:
        """A denoiser is cached by this method."""
        self._counts |= config.counts_guidance
        self._assumes |= config.counts_guidance and config.counts_amplification

    def add(self, scale: float | None) -> None:
        """The pipeline guides with this scale at a later tick; None where it tells none."""
        if scale is not None and self._counts:
            self._scales.append(max(scale, 1.0))

    def note(self, record: RunRecord, planned: float | None, others: Sequence[float]) -> None:
        """If the scale has changed during a run that reused something, its report gives no expected error. If it is unknown, the report says what was assumed.

        Args:
            record: the run's.
            planned: the scale that it was planned with; None: it is not known.
            others: scales that steps have shown.
        """
        if not record.reused_ticks():
            return
        change = change_of(planned, [*self._scales, *others])
        if change is not None:
            record.notes.append(change)
            record.guidance_changed = True
        elif planned is None and self._assumes:
            record.notes.append(ASSUMED)


def change_of(planned: float | None, scales: Sequence[float]) -> str | None:
    """What is to be said where the scale changes during a run; None where it does not.

    Args:
        planned: the scale that the run was planned with.
        scales: others that were seen.
    """
    if planned is None or not scales:
        return None
    least, largest = min(planned, *scales), max(planned, *scales)
    return (
        None if largest <= CHANGED * least else CHANGES.format(least=least, largest=largest, planned=planned)
    )
