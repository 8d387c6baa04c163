"""Distances between sets of pictures, from their features: FID, KID, Inception score, precision and recall.

The first three are torchmetrics' own. They are given features instead of pictures, so that features can be kept on disk,
gathered from several processes, and compared with several references.
"""

import warnings
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torchmetrics.image.fid import FrechetInceptionDistance
from torchmetrics.image.inception import InceptionScore
from torchmetrics.image.kid import KernelInceptionDistance

from diffcache.evals.errors import EvaluationError

KID_SUBSETS, KID_SUBSET_SIZE = 100, 1000
NEIGHBOURS = 3
FEWEST = NEIGHBOURS + 2
"""Samples of each set, at least."""
SMALLEST_SPLIT = 100
SEED = 0
"""Of the random subsets of KID and the Inception score, so that a figure can be repeated."""
ALONE = {"sync_on_compute": False}
"""For torchmetrics: only the main process computes, and it has gathered the features already."""


@dataclass(frozen=True)
class Distances:
    """How far a set of pictures is from a reference set.

    Attributes:
        fid: Fréchet distance (arXiv 1706.08500). It is biased for few samples, so compare only equal numbers of samples.
        kid: unbiased squared MMD with a cubic kernel (arXiv 1801.01401), the mean over subsets. It can be negative.
        inception_score: exp of the mean KL divergence of the classes (arXiv 1606.03498); None without logits.
        precision, recall: shares of samples within the manifold of the other set (arXiv 1904.06991), 3 neighbours.
    """

    fid: float
    kid: float
    precision: float
    recall: float
    inception_score: float | None

    def as_dict(self) -> dict[str, float | None]:
        return asdict(self)


def distances(features: Tensor, reference: Tensor, logits: Tensor | None = None) -> Distances:
    """All distances of a set of samples to a reference set.

    Args:
        features: of the samples, [N, D].
        reference: features of the reference set, [M, D].
        logits: of the samples, [N, classes]; None: no Inception score.

    Raises:
        EvaluationError: there are too few samples, or features of different lengths.
    """
    _check(features, reference)
    return Distances(
        fid=fid(features, reference),
        kid=kid(features, reference),
        precision=coverage(features, reference),
        recall=coverage(reference, features),
        inception_score=None if logits is None else inception_score(logits),
    )


def fid(features: Tensor, reference: Tensor) -> float:
    """Fréchet distance of two sets of features, [N, D] and [M, D]."""
    metric = FrechetInceptionDistance(_AsItIs(features.shape[1]), **ALONE)
    metric.update(reference, real=True)
    metric.update(features, real=False)
    return float(metric.compute())


def kid(features: Tensor, reference: Tensor) -> float:
    """Kernel distance of two sets of features, [N, D] and [M, D]: the mean over subsets of at most 1000 samples."""
    size = min(KID_SUBSET_SIZE, len(features), len(reference))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that it keeps all features
        metric = KernelInceptionDistance(
            _AsItIs(features.shape[1]), subsets=KID_SUBSETS, subset_size=size, **ALONE
        )
    metric.update(reference, real=True)
    metric.update(features, real=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        mean, _ = metric.compute()
    return float(mean)


def inception_score(logits: Tensor) -> float:
    """Inception score of logits [N, classes]: the mean over ten splits, or over one if there are too few samples."""
    splits = 10 if len(logits) >= 10 * SMALLEST_SPLIT else 1
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter(
            "ignore"
        )  # it warns that it keeps all logits, and that one split has no deviation
        torch.manual_seed(SEED)
        metric = InceptionScore(_AsItIs(logits.shape[1]), splits=splits, **ALONE)
        metric.update(logits)
        mean, _ = metric.compute()
    return float(mean)


def coverage(samples: Tensor, manifold: Tensor) -> float:
    """Share of samples [N, D] that lie within the manifold of other samples [M, D] (arXiv 1904.06991, equation 1).

    The manifold is the union of balls around its points, each as large as the distance to the 3rd nearest neighbour.
    coverage(generated, real) is precision, and coverage(real, generated) is recall.
    """
    samples, manifold = samples.double(), manifold.double()
    # The nearest point to each point is that point itself.
    radii = torch.cdist(manifold, manifold).kthvalue(NEIGHBOURS + 1, dim=1).values
    inside = torch.cdist(samples, manifold) <= radii
    return float(inside.any(1).double().mean())


class _AsItIs(nn.Module):
    """An extractor for torchmetrics that returns features as they are."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features

    def forward(self, features: Tensor) -> Tensor:
        return features


def _check(features: Tensor, reference: Tensor) -> None:
    if features.shape[1] != reference.shape[1]:
        raise EvaluationError(
            f"the samples have {features.shape[1]} features and the reference {reference.shape[1]}: "
            "extract both with the same extractor."
        )
    given = min(len(features), len(reference))
    if given < FEWEST:
        raise EvaluationError(f"{given} samples are too few for a distance: give at least {FEWEST}.")
