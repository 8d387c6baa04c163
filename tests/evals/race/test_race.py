"""The race: compute and memory are measured alike for all, peers leave no trace, and margins are what they say."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from diffcache.api import DEFAULT
from diffcache.discovery.flops import FlopCount
from diffcache.evals.harness.rendering import render
from diffcache.evals.race import raced_testbed
from diffcache.evals.race.contender import Contender, Setup, spread
from diffcache.evals.race.flops import counted_flops
from diffcache.evals.race.live_memory import live_memory
from diffcache.evals.race.margins import best, margins, steps_within
from diffcache.evals.race.ours import CONTENDERS
from diffcache.evals.race.peers import PEERS
from diffcache.evals.race.raced_testbed import Measurement, RacedTestbed
from diffcache.evals.race.result import RaceResult
from diffcache.evals.race.run import run_race
from diffcache.evals.tables.race import margin_table, measurement_table, summary_table
from diffcache.evals.testbeds import zoo

STEPS = 8
PACKAGES = {"cache-dit": "cache_dit", "DeepCache": "DeepCache"}


def row(package: str, compute: float, psnr: float, name: str = "m") -> Measurement:
    return Measurement(
        name=name,
        package=package,
        knob="knob",
        setting=1,
        compute=compute,
        psnr_full=psnr,
        ssim_full=0.9,
        psnr_reference=psnr - 1,
        kid=0.1,
        cache_bytes=1024,
    )


def result(
    fewer_steps: list[Measurement], rows: list[Measurement], samples: int = 1, date: str = "old"
) -> RaceResult:
    return RaceResult(
        header={"date": date},
        testbed="flux",
        samples=samples,
        steps=50,
        full=row("", 1, 100),
        fewer_steps=fewer_steps,
        rows=rows,
        refused={},
    )


@pytest.mark.parametrize("name", zoo.NAMES)
def test_compute_and_memory_are_what_our_report_says(name: str) -> None:
    found = []
    for config in (None, DEFAULT):
        pipe, call = zoo.load(name), zoo.sample_call(name, 0, STEPS, 2)
        with counted_flops(pipe) as flops, live_memory(pipe.scheduler, STEPS // 2) as memory:
            report = render(pipe, call, config).report
        assert memory.bytes is not None
        found.append((flops.total, memory.bytes))
    (full, latents), (some, with_cache) = found
    assert report is not None
    assert some / full == pytest.approx(report.compute_fraction)
    noted_later = report.cache_bytes - (
        with_cache - latents
    )  # what the watch measures, until the run is over
    assert 0 <= noted_later < 8 * STEPS


def test_attention_is_counted_on_a_cpu_too() -> None:
    query = torch.rand(1, 2, 8, 16)
    with FlopCount() as count:
        torch.nn.functional.scaled_dot_product_attention(query, query, query)
    assert count.total == 2 * (2 * 2 * 8 * 8 * 16)  # two products for each of two heads


@pytest.mark.parametrize("computed", [5, 10, 25, 33, 49])
def test_computed_ticks_are_spread(computed: int) -> None:
    ticks = spread(computed, 50)
    assert sum(ticks) == computed
    assert all(ticks[:3])
    gaps = "".join("#" if tick else "-" for tick in ticks[3:]).split("#")
    assert max(map(len, gaps)) - min(map(len, gaps)) <= 2  # whole ticks, and the tail


@pytest.mark.parametrize("contender", [*PEERS, *CONTENDERS], ids=lambda c: f"{c.package} {c.name}")
def test_at_least_eight_settings_in_order(contender: Contender) -> None:
    assert len(contender.settings) >= (3 if contender.name == "tuned, speedup=" else 8)
    assert list(contender.settings) == sorted(
        contender.settings, reverse=contender.knob in ("interval", "threshold")
    )


@cache
def full_run(name: str, steps: int) -> tuple[Tensor, int]:
    """The plain pipeline's picture, and its FLOPs."""
    pipe = zoo.load(name)
    with counted_flops(pipe) as flops:
        return render(pipe, zoo.sample_call(name, 0, steps, 1)).pictures, flops.total


@pytest.mark.parametrize("peer", PEERS, ids=lambda c: f"{c.package} {c.name}")
def test_a_peer_computes_less_and_leaves_no_trace(peer: Contender) -> None:
    if peer.package in PACKAGES:
        pytest.importorskip(PACKAGES[peer.package], reason="pip install diffcache[peers]")
    name = {"SeaCache": "wan", "DeepCache": "sd"}.get(peer.name, "flux")
    steps = 24 if peer.name == "SeaCache" else STEPS  # it adds up changes, and reuses nothing in short runs
    plain, full = full_run(name, steps)
    pipe, call = zoo.load(name), zoo.sample_call(name, 0, steps, 1)
    with counted_flops(pipe) as flops:
        with peer.attach(pipe, peer.settings[0], Setup(name, steps)):
            cached, some = render(pipe, call).pictures, flops.total
        after, again = render(pipe, call).pictures, flops.total - some
    assert some < full
    assert not torch.equal(cached, plain)
    assert torch.equal(after, plain)
    assert again == full


@contextmanager
def broken(pipe: Any, setting: float, track: Setup) -> Iterator[None]:
    raise RuntimeError("no such thing")
    yield


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raced_testbed, "REFERENCE_STEPS", 12)
    monkeypatch.setattr(raced_testbed, "REAL_PICTURES", 16)


@pytest.mark.usefixtures("_short")
def test_a_small_race(tmp_path: Path) -> None:
    default = replace(CONTENDERS[0], settings=(1.0,))
    refusing = Contender("refusing", "somebody's", "knob", (1,), broken)
    raced = run_race("dit", [default, refusing], samples=2, steps=STEPS, rounds=1, header={})
    assert raced.refused == {"somebody's: refusing": "RuntimeError: no such thing"}
    assert raced.full.compute == 1
    assert raced.full.psnr_full == 100
    (ours,) = raced.rows
    assert ours.compute < 1
    assert ours.psnr_full < 100
    assert [one.setting for one in raced.fewer_steps] == [5, 5, 4, 4, 2, 2]
    assert RaceResult.load(raced.save(tmp_path / "race.json")) == raced
    assert "| diffcache | default | threshold 1 |" in measurement_table(raced)


@pytest.mark.usefixtures("_short")
def test_a_fault_of_our_own_is_not_published_as_a_refusal() -> None:
    own = replace(CONTENDERS[0], attach=broken)
    with pytest.raises(RuntimeError, match="no such thing"):
        run_race("dit", [own], samples=2, steps=2, rounds=0, header={})


@pytest.mark.usefixtures("_short")
def test_a_setting_is_timed_beside_the_full_run() -> None:
    raced = RacedTestbed("dit", 1, STEPS)
    timed = raced.timed(row("diffcache", 0.4, 40), CONTENDERS[0], rounds=1)
    assert timed.loop_time is not None
    assert replace(timed, loop_time=None) == row("diffcache", 0.4, 40)


def test_the_best_within_a_budget() -> None:
    rows = [row("a", 0.6, 60), row("a", 0.509, 50), row("a", 0.3, 40)]
    assert best(rows, 1.5) == rows[0]
    assert best(rows, 2) == rows[1]  # 0.9 % over: within the slack
    assert best(rows, 4) is None
    assert [steps_within(budget, 50) for budget in (1.5, 2, 3)] == [33, 25, 17]


def test_margins_are_ours_minus_theirs() -> None:
    ours, theirs = (
        [row("diffcache", 0.3, 41, "default"), row("diffcache", 0.5, 50)],
        [row("peer", 0.5, 47)],
    )
    fewer_steps = [row("", 0.5, 44, "fewer steps, own"), row("", 0.34, 40, "fewer steps, UniPC")]
    raced = result(fewer_steps, ours + theirs)
    found = {margin.budget: margin for margin in margins(raced)}
    assert found[2.0].over_peer == 3
    assert found[2.0].over_fewer_steps == 6
    assert found[3.0].over_peer is None
    assert found[3.0].over_fewer_steps == 1
    assert found[2.0].default == ours[0]
    assert found[2.0].holding is None
    assert "| flux | 3x | default | 41.0 | 41.0 |  | peer | none fits |  |  |" in margin_table([raced])
    summary = summary_table([raced])
    assert "| flux | 2x | 41.0 at 30% | -6.0 | -3.0 | +3.0 |" in summary
    assert "| flux | 3x | 41.0 at 30% |  | +1.0 |  |" in summary


def test_rows_of_some_can_be_renewed_and_all_others_stay() -> None:
    old = result(
        [], [row("diffcache", 0.5, 40, "a"), row("diffcache", 0.4, 39, "b"), row("peer", 0.5, 47, "a")]
    )
    newer = old.with_rows_of(result([], [row("diffcache", 0.5, 50, "a")], date="new"), ["diffcache: a"])
    assert [(one.name, one.psnr_full) for one in newer.rows] == [("a", 50), ("b", 39), ("a", 47)]
    assert newer.header == {"date": "old"}
    assert newer.renewed == [{"names": ["diffcache: a"], "date": "new"}]
    newest = newer.with_rows_of(
        result([], [row("diffcache", 0.5, 51, "a")], date="newest"), ["diffcache: a", "diffcache: b"]
    )
    assert [(one.name, one.psnr_full) for one in newest.rows] == [("a", 51), ("a", 47)]
    assert [note["date"] for note in newest.renewed] == ["newest"]
    with pytest.raises(ValueError, match="race these alike"):
        old.with_rows_of(result([], [row("diffcache", 0.5, 50)], samples=3), ["diffcache: a"])
