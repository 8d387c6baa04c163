"""Guards: rules that turn a reuse into a compute, never the reverse."""

from dataclasses import dataclass
from typing import NamedTuple

from diffcache.schedulers.steps import Step

WARM_UP = "warm-up"
TAIL = "tail"
NOTHING_STORED = "nothing stored yet"
STALE = "missed the last computed tick"
CAP = "cap on consecutive reuses"
NO_SIGNAL = "nothing to measure yet"
NAN = "signal is not finite"


class History(NamedTuple):
    """What a branch has stored when it is called.

    Attributes:
        last_computed: tick of the newest stored feature; None where nothing is stored.
        refreshed: last tick that the leading branch computed. A branch that did not compute there is stale.
    """

    last_computed: int | None
    refreshed: int | None


@dataclass(frozen=True, slots=True)
class Guards:
    """The rules that all methods share.

    Args:
        warmup_steps: ticks at the start of a run that are always computed.
        tail_steps: ticks at the end of a run that are always computed.
        max_consecutive_reuses: the most reuses in a row; None: no limit.
    """

    warmup_steps: int
    tail_steps: int
    max_consecutive_reuses: int | None = None

    def forces_compute(self, step: Step, history: History) -> str | None:
        """Why this call must be computed; None where it need not be."""
        if step.tick < self.warmup_steps:
            return WARM_UP
        if step.num_ticks is not None and step.tick >= step.num_ticks - self.tail_steps:
            return TAIL
        if history.last_computed is None:
            return NOTHING_STORED
        if history.refreshed is not None and history.last_computed < history.refreshed:
            return STALE
        reused = step.tick - history.last_computed - 1
        if self.max_consecutive_reuses is not None and reused >= self.max_consecutive_reuses:
            return CAP
        return None
