"""Drift by each metric."""

from __future__ import annotations

import pytest
import torch

from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.search.drift import drift_of, heads_of


@pytest.mark.parametrize(("metric", "expected"), [("l1", 1.0), ("mse", 2.0), ("cosine", 1.0)])
def test_drift_by_each_metric(metric: str, expected: float) -> None:
    drift = drift_of(torch.tensor([[2.0, 0.0], [2.0, 2.0], [0.0, 2.0]]), metric)  # type: ignore[arg-type]
    if metric == "cosine":
        assert float(drift[0, 2]) == pytest.approx(expected)
    else:
        assert float(drift[0, 1]) == pytest.approx(expected)
    assert not drift.tril().any()


def test_an_unknown_metric_and_a_table_without_the_first_tick_are_refused() -> None:
    with pytest.raises(ConfigError, match="metric: 'l2' is not one of l1, mse, cosine"):
        drift_of(torch.zeros(3, 2), "l2")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="every site must be computed at the first tick"):
        heads_of(torch.zeros(4, 2, dtype=torch.bool))
