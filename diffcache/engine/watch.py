"""The watch: compares, at every computed tick, what would have been predicted with what was computed."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from diffcache.kernels.relative_l1 import relative_l1
from diffcache.schedulers.steps import Decision

COMPARED = (Decision.PREDICT, Decision.HOLD)

OFF_BOUND = "the last prediction was off by more than the bound"


class Watch:
    """Tells when a predictor does worse than holding, and when both are off by too much.

    What it learns at one computed tick holds until the next. It costs one small reduction per computed tick, read back
    when the next decision is made.

    Args:
        bound: largest error of the better of the two, as a fraction of the output (mean absolute values), at which
            ticks are still reused.
    """

    def __init__(self, bound: float) -> None:
        self._bound = bound
        self._errors: Tensor | None = None
        self._trusts = (True, True)
        self._compared = False

    def note(self, errors: Tensor) -> None:
        """How far what is `COMPARED` was from what was computed (see `errors_of`); reads nothing."""
        self._errors, self._compared = errors, True

    def trusts_prediction(self, ahead: int) -> bool:
        """Prediction was no worse than holding; until that has been seen, one tick `ahead` is as far as it is trusted."""
        trusted, _ = self._read()
        return trusted and (self._compared or ahead <= 1)

    @property
    def trusts_any(self) -> bool:
        """The better of the two was within the bound."""
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
