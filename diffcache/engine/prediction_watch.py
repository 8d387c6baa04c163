"""Compares, at every computed tick, what would have been predicted with what was computed."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from diffcache.kernels.relative_l1 import relative_l1
from diffcache.schedulers.steps import Decision

COMPARED = (Decision.PREDICT, Decision.HOLD)

OFF_BOUND = "the last prediction was off by more than the bound"


class PredictionWatch:
    """Tells when a predictor does worse than holding, and when both are off by too much.

    It compares both with the truth at each computed tick, and goes by that until the next one. That costs one small
    reduction per computed tick, which is read from the device when the next decision is made.

    Args:
        bound: ticks are reused while the better of the two has at most this error, as a fraction of the output (mean
            absolute values).
    """

    def __init__(self, bound: float) -> None:
        self._bound = bound
        self._errors: Tensor | None = None
        self._trusts = (True, True)
        self._compared = False

    def note(self, errors: Tensor) -> None:
        """Takes the errors of what is `COMPARED` (see `errors_of`) at a computed tick. Reads nothing from the device."""
        self._errors, self._compared = errors, True

    def trusts_prediction(self, ahead: int) -> bool:
        """Whether prediction was no worse than holding. Until the first comparison it is trusted for one tick `ahead` only."""
        trusted, _ = self._read()
        return trusted and (self._compared or ahead <= 1)

    @property
    def trusts_any(self) -> bool:
        """Whether the better of the two was within the bound."""
        return self._read()[1]

    def _read(self) -> tuple[bool, bool]:
        if self._errors is not None:
            predicted, held = self._errors.tolist()
            self._trusts = (predicted <= held, min(predicted, held) <= self._bound)
            self._errors = None
        return self._trusts


def errors_of(guesses: Iterable[Sequence[Tensor]], computed: Sequence[Tensor]) -> Tensor:
    """The error of each guess as a fraction of the output (mean absolute values), fp32 [guesses].

    Guesses and what was computed are lists of streams; the worst stream counts.
    """
    return torch.stack([_error(guess, computed) for guess in guesses])


def _error(guess: Sequence[Tensor], computed: Sequence[Tensor]) -> Tensor:
    return torch.stack([relative_l1(p, v) for p, v in zip(guess, computed, strict=True)]).amax()
