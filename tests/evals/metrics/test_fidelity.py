"""Fidelity: figures of each sample, as torchmetrics has them."""

from pathlib import Path

import pytest
import torch
from torchmetrics.functional.image import peak_signal_noise_ratio

from diffcache.evals.errors import EvaluationError
from diffcache.evals.metrics import fidelity
from diffcache.evals.metrics.fidelity import lpips, psnr, psnr_within, ssim


def test_metrics_are_per_sample_and_agree_with_torchmetrics() -> None:
    a = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    b = (a + 0.05 * torch.randn(a.shape, generator=torch.Generator().manual_seed(1))).clamp(0, 1)
    expected = [peak_signal_noise_ratio(x, y, data_range=1.0).item() for x, y in zip(b, a, strict=True)]
    assert psnr(b, a).tolist() == pytest.approx(expected, rel=1e-4)
    assert psnr(a, a).tolist() == [100.0] * 3
    assert ssim(a, a).tolist() == pytest.approx([1.0] * 3)
    assert ssim(b[:, None], a[:, None]).tolist() == pytest.approx(ssim(b, a).tolist())
    assert lpips(b, a) is None  # 32 pixels are too few


@pytest.mark.parametrize("shape", [(1, 3, 5, 64), (1, 2, 3, 64, 5), (1, 64, 16)])
def test_ssim_of_what_is_too_small_is_refused_in_a_sentence(shape: tuple[int, ...]) -> None:
    with pytest.raises(EvaluationError, match="ssim needs pictures of 6 pixels at least on each side"):
        ssim(torch.zeros(shape), torch.zeros(shape))


def test_ssim_of_the_smallest_pictures() -> None:
    assert ssim(torch.ones(2, 3, 6, 6), torch.ones(2, 3, 6, 6)).tolist() == pytest.approx([1.0] * 2)


def test_a_low_picture_has_no_perceptual_distance_however_wide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fidelity, "lpips_weights", lambda: tmp_path)
    monkeypatch.setattr(
        fidelity, "learned_perceptual_image_patch_similarity", lambda *_, **__: torch.tensor(0.5)
    )
    for height, width, seen in ((32, 64, False), (64, 32, False), (64, 64, True)):
        picture = torch.zeros(1, 3, height, width)
        assert (lpips(picture, picture) is not None) == seen


def test_psnr_within_a_region_is_that_of_its_pixels() -> None:
    pictures, other = torch.zeros(2, 3, 8, 8), torch.zeros(2, 3, 8, 8)
    other[0, :, :4] = 0.1
    other[1, :, 0, 0] = 0.5
    region = torch.zeros(2, 8, 8, dtype=torch.bool)
    region[0, :2] = region[1, 4:] = True
    assert psnr_within(region, pictures, other).tolist() == pytest.approx([20.0, 100.0])
