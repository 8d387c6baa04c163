"""Who sees what: testbeds that constants are fitted on and testbeds to judge on, and the prompts and seeds of each use.

Nothing is judged on what it was fitted on. Testbeds in `FITTING` have shaped our constants: they are raced, and shown apart. The
prior of `trajectory` is fitted on nearly all testbeds: each is judged with a prior that was fitted without it.
"""

from collections.abc import Collection
from typing import Literal, NamedTuple

from diffcache.evals.errors import EvaluationError

FITTING = ("dit", "flux", "wan", "sd")
"""Testbeds of coloured shapes. Constants were chosen on them."""
JUDGING = (
    "pixart",
    "sd3",
    "sdxl",
    "fashion",
    "ddpm",
    "kontext",
    "turbo",
    "kontext_turbo",
    "sana",
    "ddim",
    "lumina2",
)
"""Testbeds of emoji and of Fashion-MNIST. No constant is chosen on them."""
UNSEEN = ("sana", "ddim", "lumina2")
"""Those of them on which the prior is not fitted either. They were trained when all else was there."""

PromptSplit = Literal["calibration", "heldout"]
Use = Literal["search", "covariance", "try", "choose", "score"]


class Part(NamedTuple):
    """The samples of a use. Sample i has the i-th prompt of the split, and seed `seed` + i.

    Attributes:
        prompts: which half of the prompts; the halves share none.
        seed: of sample 0.
        samples: numbers of the samples; None: as many as asked for, from 0.
    """

    prompts: PromptSplit
    seed: int
    samples: range | None = None


PARTS: dict[Use, Part] = {
    "search": Part("calibration", 1000),
    "covariance": Part("calibration", 5000),
    "try": Part("heldout", 0, range(4)),
    "choose": Part("heldout", 0, range(16)),
    "score": Part("heldout", 0, range(16, 32)),
}
"""Searches and calibrations use the first two. A race tries all settings on four samples, chooses among the best on 16, and
scores what was chosen on 16 others."""


def refuse_seen(testbed: str, fitted_on: Collection[str], what: str) -> None:
    """Refuses to judge what was fitted on a testbed.

    Args:
        testbed: to judge on.
        fitted_on: testbeds that had part in the fit.
        what: was fitted; for the message.

    Raises:
        EvaluationError: the testbed had part in the fit.
    """
    if testbed in fitted_on:
        raise EvaluationError(
            f"{what} was fitted on {testbed}: judge it on another testbed, or fit it without {testbed}."
        )
