"""Sketches estimate squared distances and cosines, within the error that they state, in kilobytes."""

from __future__ import annotations

import pytest
import torch
from support.searches.flux_calls import FLUX, flux_calls

from diffcache.profiling.recording.record import record, recorded
from diffcache.profiling.recording.sketch import SIZE, sketched


@pytest.mark.parametrize("spread", ["even", "a few channels hold most of it"])
def test_errors_are_as_large_as_stated(spread: str) -> None:
    """Of 200 pairs of features of 65536 elements: the relative standard error of squared distances is sqrt(2 / k) at most."""
    noise = torch.Generator().manual_seed(1)
    errors, cosines = [], []
    for _ in range(200):
        x, y = torch.randn(2, 256, 256, generator=noise)
        y = x + 0.3 * y
        if spread != "even":
            x[:, 7] *= 100
            y[:, 7] *= 100
        a, b = sketched(x), sketched(y)
        errors.append(float((a - b).square().sum() / (x - y).square().sum()) - 1)
        cosines.append(
            float(
                torch.cosine_similarity(a, b, dim=0)
                - torch.cosine_similarity(x.flatten(), y.flatten(), dim=0)
            )
        )
    bound = (2 / SIZE) ** 0.5
    assert abs(sum(errors) / len(errors)) < 3 * bound / 200**0.5  # unbiased
    assert torch.tensor(errors).square().mean().sqrt() < 1.2 * bound
    assert torch.tensor(cosines).square().mean().sqrt() < bound


def test_a_feature_that_has_not_changed_is_at_distance_zero_and_a_sketch_has_8_kilobytes() -> None:
    feature = torch.randn(3, 1_500_000).to(torch.bfloat16)
    sketch = sketched(feature)
    assert torch.equal(sketch, sketched(feature))
    assert sketch.numel() * sketch.element_size() == 8192
    assert sketched(feature.float() * 2) == pytest.approx(2 * sketch, rel=1e-3)


@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_a_recording_by_sketches_is_near_to_one_by_features(metric: str) -> None:
    """With features of fewer elements than a sketch has numbers nothing is lost but what falls into one bucket."""
    pipe, calls = FLUX.build(), flux_calls(4, 1)
    found = record(pipe, calls, sites="sub-layer", metric=metric)  # type: ignore[arg-type]
    exact = record(pipe, calls, sites="sub-layer")
    for key, curve in found.curves.items():
        assert curve.ratio == pytest.approx(exact.curves[key].ratio, rel=1e-5)
        assert curve.cosine == pytest.approx(exact.curves[key].cosine, abs=0.05)
        drift = curve.drift[1:, 0]
        assert bool((drift >= -0.05).all())
        if metric == "cosine":
            assert 1 - curve.cosine[1:] == pytest.approx(curve.change, abs=1e-6)


def test_calls_are_recorded_one_by_one_as_together() -> None:
    pipe, calls = FLUX.build(), flux_calls(4, 3)
    together, apart = record(pipe, calls), recorded(pipe, calls)
    assert together.prompts == apart.prompts
    assert apart.runs == 3
    for key, curve in together.curves.items():
        assert apart.curves[key].drift.tril(-1) == pytest.approx(curve.drift.tril(-1), rel=1e-12, nan_ok=True)
        assert apart.curves[key].ratio == pytest.approx(curve.ratio, rel=1e-12)


def test_cosines_of_features_are_what_their_sketches_estimate() -> None:
    features = torch.randn(5, 4096, generator=torch.Generator().manual_seed(0)).cumsum(0)
    sketches = torch.stack([sketched(feature) for feature in features])
    exact, estimated = (
        torch.cosine_similarity(x.double().unsqueeze(1), x.double(), dim=2) for x in (features, sketches)
    )
    assert estimated == pytest.approx(exact, abs=0.1)
