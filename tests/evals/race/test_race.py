"""The race: one ruler for compute and memory, peers that leave no trace, and who is declared the winner."""

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
from diffcache.evals.race import course
from diffcache.evals.race.census import census
from diffcache.evals.race.contender import Contender, Track, spread
from diffcache.evals.race.course import Course, Lap
from diffcache.evals.race.flops import counted
from diffcache.evals.race.ours import CONTENDERS
from diffcache.evals.race.outcome import Outcome
from diffcache.evals.race.peers import PEERS
from diffcache.evals.race.running import run_race
from diffcache.evals.race.verdict import (
    best,
    margins,
    steps_within,
    summary_table,
    sweep_table,
    verdict_table,
)
from diffcache.evals.testbeds import zoo

STEPS = 8
PACKAGES = {"cache-dit": "cache_dit", "DeepCache": "DeepCache"}


def lap(package: str, compute: float, psnr: float, name: str = "m") -> Lap:
    return Lap(name, package, "knob", 1, compute, psnr, 0.9, psnr - 1, 0.1, 1024)


@pytest.mark.parametrize("name", zoo.NAMES)
def test_compute_and_memory_are_what_our_report_says(name: str) -> None:
    found = []
    for config in (None, DEFAULT):
        pipe, call = zoo.load(name), zoo.sample_call(name, 0, STEPS, 2)
        with counted(pipe) as flops, census(pipe, STEPS // 2) as memory:
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
    with counted(pipe) as flops:
        return render(pipe, zoo.sample_call(name, 0, steps, 1)).pictures, flops.total


@pytest.mark.parametrize("peer", PEERS, ids=lambda c: f"{c.package} {c.name}")
def test_a_peer_computes_less_and_leaves_no_trace(peer: Contender) -> None:
    if peer.package in PACKAGES:
        pytest.importorskip(PACKAGES[peer.package], reason="pip install diffcache[peers]")
    name = {"SeaCache": "wan", "DeepCache": "sd"}.get(peer.name, "flux")
    steps = 24 if peer.name == "SeaCache" else STEPS  # it adds up changes, and reuses nothing in short runs
    plain, full = full_run(name, steps)
    pipe, call = zoo.load(name), zoo.sample_call(name, 0, steps, 1)
    with counted(pipe) as flops:
        with peer.attach(pipe, peer.settings[0], Track(name, steps)):
            cached, some = render(pipe, call).pictures, flops.total
        after, again = render(pipe, call).pictures, flops.total - some
    assert some < full
    assert not torch.equal(cached, plain)
    assert torch.equal(after, plain)
    assert again == full


@contextmanager
def broken(pipe: Any, setting: float, track: Track) -> Iterator[None]:
    raise RuntimeError("no such thing")
    yield


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course, "REFERENCE_STEPS", 12)
    monkeypatch.setattr(course, "REAL_PICTURES", 16)


@pytest.mark.usefixtures("_short")
def test_a_small_race(tmp_path: Path) -> None:
    default = replace(CONTENDERS[0], settings=(1.0,))
    refusing = Contender("refusing", "somebody's", "knob", (1,), broken)
    outcome = run_race("dit", [default, refusing], samples=2, steps=STEPS, rounds=1, provenance={})
    assert outcome.refused == {"somebody's: refusing": "RuntimeError: no such thing"}
    assert outcome.full.compute == 1
    assert outcome.full.psnr_full == 100
    (ours,) = outcome.laps
    assert ours.compute < 1
    assert ours.psnr_full < 100
    assert [row.setting for row in outcome.fewer] == [5, 5, 4, 4, 2, 2]
    assert Outcome.load(outcome.save(tmp_path / "race.json")) == outcome
    assert "| diffcache | default | threshold 1 |" in sweep_table(outcome)


@pytest.mark.usefixtures("_short")
def test_a_fault_of_our_own_is_not_published_as_a_refusal() -> None:
    own = replace(CONTENDERS[0], attach=broken)
    with pytest.raises(RuntimeError, match="no such thing"):
        run_race("dit", [own], samples=2, steps=2, rounds=0, provenance={})


@pytest.mark.usefixtures("_short")
def test_a_lap_is_timed_beside_the_full_run() -> None:
    found = Course("dit", 1, STEPS)
    timed = found.timed(lap("diffcache", 0.4, 40), CONTENDERS[0], rounds=1)
    assert timed.loop_time is not None
    assert replace(timed, loop_time=None) == lap("diffcache", 0.4, 40)


def test_the_best_within_a_budget() -> None:
    laps = [lap("a", 0.6, 60), lap("a", 0.509, 50), lap("a", 0.3, 40)]
    assert best(laps, 1.5) == laps[0]
    assert best(laps, 2) == laps[1]  # 0.9 % over: within the slack
    assert best(laps, 4) is None
    assert [steps_within(budget, 50) for budget in (1.5, 2, 3)] == [33, 25, 17]


def test_margins_are_ours_minus_theirs() -> None:
    ours, theirs = (
        [lap("diffcache", 0.3, 41, "default"), lap("diffcache", 0.5, 50)],
        [lap("peer", 0.5, 47)],
    )
    fewer = [lap("", 0.5, 44, "fewer steps, own"), lap("", 0.34, 40, "fewer steps, UniPC")]
    outcome = Outcome("flux", 1, 50, lap("", 1, 100), fewer, ours + theirs, {})
    rows = {row.budget: row for row in margins(outcome)}
    assert rows[2.0].over_peer == 3
    assert rows[2.0].over_fewer == 6
    assert rows[3.0].over_peer is None
    assert rows[3.0].over_fewer == 1
    assert rows[2.0].default == ours[0]
    assert rows[2.0].holding is None
    assert "| flux | 3x | default | 41.0 | 41.0 |  | peer | none fits |  |  |" in verdict_table([outcome])
    summary = summary_table([outcome])
    assert "| flux | 2x | 41.0 at 30% | -6.0 | -3.0 | +3.0 |" in summary
    assert "| flux | 3x | 41.0 at 30% |  | +1.0 |  |" in summary


def test_laps_of_some_can_be_renewed_and_all_others_stay() -> None:
    def outcome(*laps: Lap, samples: int = 2, date: str = "old") -> Outcome:
        return Outcome("flux", samples, 50, lap("", 1, 100), [], list(laps), {}, {"date": date})

    old = outcome(lap("diffcache", 0.5, 40, "a"), lap("diffcache", 0.4, 39, "b"), lap("peer", 0.5, 47, "a"))
    newer = old.renewed(outcome(lap("diffcache", 0.5, 50, "a"), date="new"), ["diffcache: a"])
    assert [(one.name, one.psnr_full) for one in newer.laps] == [("a", 50), ("b", 39), ("a", 47)]
    assert newer.provenance == {"date": "old", "renewed": [{"contenders": ["diffcache: a"], "date": "new"}]}
    newest = newer.renewed(
        outcome(lap("diffcache", 0.5, 51, "a"), date="newest"), ["diffcache: a", "diffcache: b"]
    )
    assert [(one.name, one.psnr_full) for one in newest.laps] == [("a", 51), ("a", 47)]
    assert [race["date"] for race in newest.provenance["renewed"]] == ["newest"]
    with pytest.raises(ValueError, match="race these alike"):
        old.renewed(outcome(lap("diffcache", 0.5, 50), samples=3), ["diffcache: a"])
