"""FID in the race: everybody draws the same classes from the same seeds, at settings that the race chose, and only once."""

from pathlib import Path
from typing import Any

import pytest
import torch

from diffcache.evals.harness.results import read_result
from diffcache.evals.race import distributions, ours
from diffcache.evals.race.contender import RaceSetup
from diffcache.evals.race.distributions import DTYPE, Distributions
from diffcache.evals.race.entries import BEST_PEER, PUBLISHED, TITLES, entries
from diffcache.evals.race.result import RaceResult
from diffcache.evals.race.row import Row, psnr_in_8_bits
from diffcache.evals.race.standings import own
from diffcache.evals.race.track import FULL, Track
from diffcache.evals.tables.race_fid import fid_table
from diffcache.evals.testbeds import fashion_mnist

STEPS, SAMPLES = 4, 20
PEER, OTHER_PEER = "cache-dit: DBCache", "cache-dit: step masks"
Drawn = tuple[str, list[int], list[int]]


def row(contender: str, compute: float, psnr: float, part: str = "choose", **options: Any) -> Row:
    return Row(
        contender=contender, options=options, part=part, compute=compute, psnr=[psnr], truth=[], changed=[], ssim=[],
        loop_time=1.0,
    )  # fmt: skip


def raced(steps: int = STEPS) -> RaceResult:
    rows = [
        row(ours.FEWER, 0.75, 50, solver="own", steps=3),
        row(ours.FEWER, 0.5, 40, solver="UniPC", steps=2),
        row(ours.FEWER, 0.5, 30, solver="own", steps=2),
        row(ours.FEWER, 0.5, 99, "try", solver="DDIM", steps=2),
        row(ours.FEWER, 0.25, 20, solver="own", steps=1),
        row(PEER, 0.55, 60, residual_diff_threshold=0.1),
        row(PEER, 0.4, 35, residual_diff_threshold=0.2),
        row(OTHER_PEER, 0.3, 36, mask="even"),
        row(own("teacache"), 0.49, 33, threshold=0.1),
        row(own("seacache"), 0.49, 34, threshold=0.2),
    ]
    return RaceResult({}, "fashion", steps, rows)


def test_settings_are_those_that_the_race_chose_within_the_budget() -> None:
    found = {title: entries(raced(50), title) for title in TITLES}
    chosen = {title: [(e.budget, dict(e.options)) for e in of] for title, of in found.items()}
    assert chosen[FULL] == [(None, {})]
    assert chosen[ours.FEWER] == [
        (2.0, {"solver": "UniPC", "steps": 2}),
        (3.0, {"solver": "own", "steps": 1}),
    ]
    assert chosen[BEST_PEER] == [(2.0, {"mask": "even"}), (3.0, {"mask": "even"})]
    assert chosen[PUBLISHED] == [(2.0, {"threshold": 0.2})]
    for title in (own(ours.SPEEDUP), own(ours.EVEN), own(ours.TUNED)):
        assert chosen[title] == [(2.0, {"speedup": 2.0}), (3.0, {"speedup": 3.125})]
    assert chosen[own(ours.TYPED)] == [(None, {"defaults": True})]
    assert [e.contender.full_name for e in found[PUBLISHED] if e.contender] == [own("seacache")]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Drawn]:
    """What is drawn, with noise in the place of pictures."""
    calls: list[Drawn] = []

    def noise(self: Any, contender: Any, options: Any, prompts: Any, seeds: Any) -> Any:
        calls.append((FULL if contender is None else contender.full_name, list(prompts), list(seeds)))
        return torch.rand(len(prompts), 3, 32, 32), 1.0 if contender is None else 0.5

    monkeypatch.setattr(Track, "pictures", noise)
    monkeypatch.setattr(distributions, "BATCH", 8)
    return calls


@pytest.fixture(autouse=True)
def _few_real_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    few = fashion_mnist.reference_features()[:100]
    monkeypatch.setattr(fashion_mnist, "reference_features", lambda: few)


def measure(folder: Path, titles: list[str], commit: str = "a", samples: int = SAMPLES) -> dict[str, Any]:
    header, path = {"commit": commit}, folder / "fid.json"
    Distributions(raced(), path, header, folder / commit, samples).run(titles)
    return read_result(path)


def test_all_draw_each_class_as_often_from_the_same_seeds(tmp_path: Path, drawn: list[Drawn]) -> None:
    measure(tmp_path, [FULL, ours.FEWER, own(ours.EVEN)])
    full = [call[1:] for call in drawn if call[0] == FULL]
    labels = [label for batch, _ in full for label in batch]
    assert all(labels.count(label) == SAMPLES // 10 for label in range(10))
    assert len({seed for _, seeds in full for seed in seeds}) == SAMPLES
    for name in (ours.FEWER, own(ours.EVEN)):
        assert [call[1:] for call in drawn if call[0] == name] == 2 * full


def test_nothing_is_drawn_twice(tmp_path: Path, drawn: list[Drawn], monkeypatch: pytest.MonkeyPatch) -> None:
    extracted = Distributions._drawn
    monkeypatch.setattr(
        Distributions, "_drawn", lambda self, entry, n: extracted(self, entry, n) if n[0] < 16 else 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        measure(tmp_path, [FULL])
    monkeypatch.setattr(Distributions, "_drawn", extracted)
    first = measure(tmp_path, [FULL])
    assert [len(labels) for _, labels, _ in drawn] == [8, 8, 4]
    assert measure(tmp_path, [FULL]) == first
    assert len(drawn) == 3
    assert [found["pictures"] for found in first["rows"]] == [SAMPLES]


def test_a_row_is_measured_again_with_other_code(tmp_path: Path, drawn: list[Drawn]) -> None:
    before = measure(tmp_path, [FULL, ours.FEWER])
    count = len(drawn)
    after = measure(tmp_path, [ours.FEWER], commit="b")
    assert len(drawn) > count
    assert len(after["rows"]) == len(before["rows"])
    assert before["rows"][0] in after["rows"]
    assert after["header"] == {"commit": "a"}
    assert after["renewed"] == [{"names": [ours.FEWER], "commit": "b"}]


def test_real_pictures_are_measured(tmp_path: Path) -> None:
    even = measure(tmp_path, [own(ours.EVEN)], samples=10)["rows"][0]
    assert even["compute"] == 0.5
    assert 0 < even["fid"] < 1000


def test_pictures_in_bfloat16_are_nearly_those_in_float32() -> None:
    in_full, in_half = (
        Track(RaceSetup("fashion", STEPS), dtype=dtype).pictures(None, {}, [3, 4], [7, 8])[0]
        for dtype in (torch.float32, DTYPE)
    )
    assert in_half.dtype == torch.float32
    assert not torch.equal(in_full, in_half)
    assert min(psnr_in_8_bits(in_half, in_full)) > 35
    assert not torch.is_autocast_enabled("cpu")


def test_the_table_shows_what_was_measured(tmp_path: Path) -> None:
    figures = {"pictures": 10_000, "fid": 1.234, "kid": 0.00567}
    rows = [
        {"title": title, "contender": name, "options": options, "budget": budget, "compute": 0.5, **figures}
        for title, name, options, budget in (
            (BEST_PEER, PEER, {}, 3.0),
            (BEST_PEER, PEER, {}, 2.0),
            (ours.FEWER, ours.FEWER, {"solver": "UniPC"}, 2.0),
            (FULL, FULL, {}, None),
        )
    ]
    header = {"date": "2026-11-23", "device": "cpu, one thread"}
    result = {"header": header, "renewed": [], "steps": 50, "denoiser": "bfloat16", "rows": rows}
    assert fid_table(result).splitlines()[2:] == [
        "| full run |  | 50% | 1.23 | 5.67 |",
        "| fewer steps, UniPC | 2x | 50% | 1.23 | 5.67 |",
        "| cache-dit: DBCache | 2x | 50% | 1.23 | 5.67 |",
        "|  | 3x | 50% | 1.23 | 5.67 |",
        "",
        "10,000 pictures of each, 50 steps, denoiser in bfloat16; cpu, one thread; 2026-11-23.",
    ]
