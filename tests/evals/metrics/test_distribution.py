"""Distances between sets of features: they equal torchmetrics' own, and refuse what cannot be compared."""

import pytest
import torch
from torch import Tensor, nn
from torchmetrics.image.fid import FrechetInceptionDistance
from torchmetrics.image.inception import InceptionScore
from torchmetrics.image.kid import KernelInceptionDistance

from diffcache.evals.errors import EvaluationError
from diffcache.evals.metrics.distribution import (
    KID_SUBSETS,
    coverage,
    distances,
    fid,
    inception_score,
    kid,
)


class Pooled(nn.Module):
    """Pictures to features that torchmetrics can use itself."""

    num_features = 12

    def forward(self, pictures: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool2d(pictures.float(), 2).flatten(1)


def pictures(n: int, seed: int) -> Tensor:
    return torch.randint(
        0, 256, (n, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )


def random_features(n: int, seed: int, mean: float = 0.0) -> Tensor:
    return mean + torch.randn(n, 16, generator=torch.Generator().manual_seed(seed))


def test_fid_kid_and_inception_score_are_torchmetrics_own() -> None:
    real, made, net = pictures(40, 0), pictures(30, 1), Pooled()
    theirs = FrechetInceptionDistance(net)
    theirs.update(real, real=True)
    theirs.update(made, real=False)
    assert fid(net(made), net(real)) == pytest.approx(float(theirs.compute()), rel=1e-6)

    kernel = KernelInceptionDistance(net, subsets=KID_SUBSETS, subset_size=30)
    kernel.update(real, real=True)
    kernel.update(made, real=False)
    torch.manual_seed(0)
    assert kid(net(made), net(real)) == float(kernel.compute()[0])

    for splits, n in ((1, 30), (10, 1000)):
        score = InceptionScore(net, splits=splits)
        score.update(pictures(n, 1))
        torch.manual_seed(0)
        assert inception_score(net(pictures(n, 1))) == float(score.compute()[0])


def test_kid_repeats_and_leaves_the_random_state_alone() -> None:
    made, real = random_features(20, 0), random_features(30, 1)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = kid(made, real)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    assert kid(made, real) == first


def test_precision_and_recall_tell_collapse_from_noise() -> None:
    real = random_features(200, 0)
    collapsed = real[:1] + 0.01 * random_features(200, 1)
    assert coverage(collapsed, real) == 1.0  # all of it is real
    assert coverage(real, collapsed) < 0.05  # and hardly anything real is covered
    assert coverage(real + 100, real) == 0.0
    assert coverage(real, real) == 1.0


def test_radii_reach_the_third_neighbour() -> None:
    line = torch.tensor([[0.0], [1.0], [2.0], [3.0], [4.0]])
    assert (
        coverage(torch.tensor([[7.0], [7.1], [-3.0], [-3.1]]), line) == 0.5
    )  # the ends reach 3, to 7 and to -3


def test_distances_refuse_what_cannot_be_compared() -> None:
    with pytest.raises(EvaluationError, match="same extractor"):
        distances(torch.zeros(8, 3), torch.zeros(8, 4))
    with pytest.raises(EvaluationError, match="too few"):
        distances(torch.zeros(3, 4), torch.zeros(8, 4))
