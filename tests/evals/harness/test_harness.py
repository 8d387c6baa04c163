"""The fidelity harness: metrics, rendering, comparison, cards, pictures."""

from pathlib import Path

import pytest
import torch
from torchmetrics.functional.image import peak_signal_noise_ratio

from diffcache import EasyCacheConfig
from diffcache.evals.harness.comparison import Comparison, table
from diffcache.evals.harness.pictures import draw_pairs
from diffcache.evals.harness.redundancy import card, draw
from diffcache.evals.harness.rendering import render
from diffcache.evals.metrics.fidelity import lpips, psnr, ssim
from diffcache.evals.testbeds import zoo


def test_metrics_are_per_sample_and_agree_with_torchmetrics() -> None:
    a = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    b = (a + 0.05 * torch.randn(a.shape, generator=torch.Generator().manual_seed(1))).clamp(0, 1)
    expected = [peak_signal_noise_ratio(x, y, data_range=1.0).item() for x, y in zip(b, a, strict=True)]
    assert psnr(b, a).tolist() == pytest.approx(expected, rel=1e-4)
    assert psnr(a, a).tolist() == [100.0] * 3
    assert ssim(a, a).tolist() == pytest.approx([1.0] * 3)
    assert ssim(b[:, None], a[:, None]).tolist() == pytest.approx(ssim(b, a).tolist())
    assert lpips(b, a) is None  # 32 pixels are too few


@pytest.mark.parametrize("name", zoo.NAMES)
def test_rendering_repeats_and_leaves_the_pipeline_plain(name: str) -> None:
    pipe, call = zoo.load(name), zoo.sample_call(name, 0, 4, 2)
    classes = {key: type(part) for key, part in pipe.components.items()}
    first = render(pipe, call)
    exact = render(pipe, call, EasyCacheConfig(threshold=0.0))
    assert torch.equal(first.pictures, exact.pictures)
    assert first.pictures.shape[-3] == 3
    assert first.seconds > 0
    assert exact.report is not None
    assert exact.report.num_ticks == 4
    assert {key: type(part) for key, part in pipe.components.items()} == classes
    assert "step" not in vars(pipe.scheduler)


def test_a_comparison_has_its_rulers() -> None:
    pipe = zoo.load("flux")
    comparison = Comparison(pipe, zoo.sample_call("flux", 0, 6, 1), reference=torch.zeros(1, 3, 64, 64))
    rows = [comparison.full_row(), *comparison.fewer_steps(3)]
    assert [row.name for row in rows] == ["full run", "3 steps, own", "3 steps, DPM++ 2M", "3 steps, UniPC"]
    assert rows[0].psnr_full == 100.0
    assert all(row.psnr_full < 100 for row in rows[1:])
    assert "| 3 steps, UniPC | 3/6 | 50% |" in table(rows)


def test_a_comparison_measures_a_distance_where_it_is_asked_to() -> None:
    call = zoo.sample_call("dit", 0, 2, 2)
    comparison = Comparison(zoo.load("dit"), call, referenced=False, distance=lambda pictures: len(pictures))
    rows = [comparison.full_row()]
    assert rows[0].kid == 2
    assert table(rows).splitlines()[0].endswith("| KID |")
    assert "1000" not in table(rows)


def test_cards_and_pictures_are_drawn(tmp_path: Path) -> None:
    pipe, call = zoo.load("wan"), zoo.sample_call("wan", 0, 6, 1)
    found = card(pipe, call)
    assert len(found.output_change) == 5
    assert len(found.block_change) == 14
    assert all(len(changes) == 5 for changes in found.block_change)
    assert draw("wan", found, tmp_path / "card.png").stat().st_size > 1000
    pictures = render(pipe, call).pictures
    assert draw_pairs(pictures, pictures, tmp_path / "pairs.png").stat().st_size > 1000
