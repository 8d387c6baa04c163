"""The watch: compares, at every computed tick, what would have been predicted with what was computed."""

from collections.abc import Sequence

import torch
from torch import Tensor

from diffcache.kernels.relative_l1 import mean_abs
from diffcache.predictors import Hold, Predictor
from diffcache.schedulers.signals import EPS

OFF_BOUND = "the last prediction was off by more than the bound"


class Watch:
    """Falls back from a predictor that does worse than holding, and stops reuse where both are off by too much.

    What it learns at one computed tick holds until the next. It costs one small reduction per computed tick, read back
    when the next decision is made.

    Args:
        predictor: the method's.
        bound: largest error of the better of the two, as a fraction of the output (mean absolute values), at which
            ticks are still reused.
    """

    def __init__(self, predictor: Predictor, bound: float) -> None:
        self._predictor = predictor
        self._bound = bound
        self._errors: Tensor | None = None
        self._verdict: tuple[bool, bool] = (True, True)

    def compare(
        self, predicted: Sequence[Tensor], held: Sequence[Tensor], computed: Sequence[Tensor]
    ) -> None:
        """Notes how far prediction and holding are from what was computed, for each stream; reads nothing."""
        size = torch.stack([mean_abs(v) for v in computed]) + EPS
        errors = [torch.stack([mean_abs(p, v) for p, v in zip(guess, computed, strict=True)]) / size
                  for guess in (predicted, held)]  # fmt: skip
        self._errors = torch.stack(errors).amax(dim=1)

    @property
    def trusted(self) -> bool:
        """The better of prediction and holding is within the bound."""
        return self._read()[1]

    @property
    def predictor(self) -> Predictor:
        """The method's, unless holding was better; both are fine before there is anything to compare."""
        return self._predictor if self._read()[0] else Hold()

    def _read(self) -> tuple[bool, bool]:
        if self._errors is not None:
            predicted, held = self._errors.tolist()
            self._verdict = (predicted <= held, min(predicted, held) <= self._bound)
            self._errors = None
        return self._verdict
