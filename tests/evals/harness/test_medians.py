"""The median of an even number of samples is between the middle two."""

from __future__ import annotations

import pytest
import torch

from diffcache.evals.harness.cell import Nearness
from diffcache.evals.harness.quality import References
from diffcache.evals.harness.rendering import Rendered
from diffcache.evals.metrics.fidelity import psnr


def test_figures_of_two_samples_are_between_them() -> None:
    full, pictures = torch.zeros(2, 3, 16, 16), torch.full((2, 3, 16, 16), 0.5)
    pictures[1] = 0.25
    near = psnr(pictures, full)
    assert References(full).quality(pictures).psnr_full == pytest.approx(float(near.mean()), abs=1e-4)
    assert Nearness(near, Rendered(pictures, 0.0, 0.0)).median == round(float(near.mean()), 1)
