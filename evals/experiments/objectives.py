"""What a search of schedules can minimise besides the distance to the full run: KID, minus a CLIP score, minus a reward.

Each makes a `profiling.searching.scoring.Loss` of a candidate's pictures and the full runs'; its `__name__` goes into the search's notes.
"""

from collections.abc import Callable, Sequence

from torch import Tensor

from diffcache.evals.metrics.clip_score import ClipScore
from diffcache.evals.metrics.distribution import kid
from diffcache.evals.metrics.extractors import CLASSIFIER, Extractor
from diffcache.profiling.searching.scoring import Loss


def kid_to_full() -> Loss:
    """KID of a candidate's pictures to the full runs', in the features of the testbeds' classifier. It needs some dozens of pictures."""
    extract = Extractor(CLASSIFIER)

    def kid_to_full(pictures: Tensor, full: Tensor) -> float:
        return kid(extract(pictures).features, extract(full).features)

    return kid_to_full


def minus_clip(prompts: Sequence[str], model: str, weights: str | None = None) -> Loss:
    """Minus the mean CLIP score of a candidate's pictures; `prompts` has the prompt of each picture."""
    score = ClipScore(model, weights)

    def minus_clip(pictures: Tensor, full: Tensor) -> float:
        return -float(score(pictures, list(prompts)).mean())

    return minus_clip


def minus_reward(reward: Callable[[Tensor], Tensor]) -> Loss:
    """Minus the mean of any reward, from pictures [N, C, H, W] in 0..1 to [N]. A reward may prefer a candidate to the full run."""

    def minus_reward(pictures: Tensor, full: Tensor) -> float:
        return -float(reward(pictures).mean())

    minus_reward.__name__ = f"minus {getattr(reward, '__name__', type(reward).__name__)}"
    return minus_reward
