"""The race: compute is measured alike for all, peers leave no trace, and what was measured is not measured again."""

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
from diffcache.engine.guided_values import GuidedValues
from diffcache.evals.errors import EvaluationError
from diffcache.evals.harness.rendering import Rendered, render
from diffcache.evals.race import ours, track
from diffcache.evals.race.again import measured_again
from diffcache.evals.race.contender import Contender, RaceSetup, Sweep, even_mask
from diffcache.evals.race.everybody import EVERYBODY
from diffcache.evals.race.flops import counted_flops, counted_work, layer_costs
from diffcache.evals.race.result import RaceResult
from diffcache.evals.race.run import Race
from diffcache.evals.testbeds import splits, zoo
from tests.support.live_memory import live_memory

STEPS = 8
PACKAGES = {"cache-dit": "cache_dit", "DeepCache": "DeepCache"}
SWEPT_PEERS = [one for one in EVERYBODY if not one.ours and one.kind == "swept"]


def named(name: str) -> Contender:
    return next(one for one in EVERYBODY if one.name == name)


@pytest.mark.parametrize("name", splits.FITTING)
def test_compute_and_memory_are_what_our_report_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, waiting = [], [0]
    tensors = GuidedValues.tensors

    def counted(passes: GuidedValues) -> Iterator[Tensor]:
        held = [*tensors(passes)]
        waiting.append(sum(tensor.nbytes for tensor in held))
        return iter(held)

    monkeypatch.setattr(GuidedValues, "tensors", counted)
    # The last tick is computed, so that most is held after the step at which memory is counted.
    for config in (None, DEFAULT.replace(tail_steps=1)):
        pipe, call = zoo.load(name), zoo.sample_call(name, 0, STEPS, 2)
        with counted_flops(pipe) as flops, live_memory(pipe.scheduler, STEPS - 2) as memory:
            report = render(pipe, call, config).report
        assert memory.bytes is not None
        found.append((flops.total, memory.bytes))
    (full, latents), (some, with_cache) = found
    assert report is not None
    assert some / full == pytest.approx(report.compute_fraction)
    noted_later = (
        report.cache_bytes - (with_cache - latents)
    )  # what is measured, until the run is over, and what waits for a second pass, which it does not at a step of the noise scheduler
    assert 0 <= noted_later - max(waiting) < 8 * STEPS


def test_attention_is_counted_on_a_cpu_too() -> None:
    query = torch.rand(1, 2, 8, 16)
    with FlopCount() as count:
        torch.nn.functional.scaled_dot_product_attention(query, query, query)
    assert count.total == 2 * (2 * 2 * 8 * 8 * 16)  # two products for each of two heads


@pytest.mark.parametrize(
    ("testbed", "name"), [("flux", "TaylorSeer"), ("sd", "DeepCache"), ("dit", "step masks")]
)
def test_counting_layers_gives_what_counting_operations_gives(testbed: str, name: str) -> None:
    peer = named(name)
    if peer.package in PACKAGES:
        pytest.importorskip(PACKAGES[peer.package], reason="pip install diffcache[peers]")
    costed = zoo.load(testbed)
    costs = layer_costs(costed, lambda: render(costed, zoo.sample_call(testbed, 0, 2, 1)))
    pipe, setup = zoo.load(testbed), RaceSetup(testbed, STEPS)
    options = list(peer.sweeps(setup)[-1])[-1]
    with (
        counted_flops(pipe) as flops,
        counted_work(pipe, costs) as work,
        peer.attach(pipe, options, setup),
    ):
        render(pipe, zoo.sample_call(testbed, 0, STEPS, 2))
    assert work.total == pytest.approx(flops.total, rel=2e-3)


@pytest.mark.parametrize("computed", [5, 10, 25, 33, 49])
def test_computed_ticks_are_spread(computed: int) -> None:
    ticks = even_mask(computed, 50)
    assert sum(ticks) == computed
    assert all(ticks[:3])
    gaps = "".join("#" if tick else "-" for tick in ticks[3:]).split("#")
    assert max(map(len, gaps)) - min(map(len, gaps)) <= 2  # whole ticks, and the tail


@pytest.mark.parametrize(
    "contender", [one for one in EVERYBODY if one.kind == "swept"], ids=lambda c: f"{c.package} {c.name}"
)
def test_at_least_eight_settings_in_order(contender: Contender) -> None:
    sweeps = contender.sweeps(RaceSetup("flux", 50))
    plans = [sweep for sweep in sweeps if sweep.knob == "speedup"]  # which has one setting for each budget
    assert plans or sum(len(sweep.values) for sweep in sweeps) >= 8
    for sweep in sweeps:
        falls = any(word in sweep.knob for word in ("interval", "threshold", "range", "speedup", "growth"))
        if sweep.knob != "preset":
            assert list(sweep.values) == sorted(sweep.values, reverse=falls)


@cache
def full_run(name: str, steps: int) -> tuple[Tensor, int]:
    """The plain pipeline's picture, and its FLOPs."""
    pipe = zoo.load(name)
    with counted_flops(pipe) as flops:
        return render(pipe, zoo.sample_call(name, 0, steps, 1)).pictures, flops.total


@pytest.mark.slow
@pytest.mark.parametrize("peer", SWEPT_PEERS, ids=lambda c: f"{c.package} {c.name}")
def test_a_peer_computes_less_and_leaves_no_trace(peer: Contender) -> None:
    if peer.package in PACKAGES:
        pytest.importorskip(PACKAGES[peer.package], reason="pip install diffcache[peers]")
    name = {"SeaCache": "wan", "DeepCache": "sd"}.get(peer.name, "flux")
    steps = 24 if peer.name == "SeaCache" else STEPS  # it adds up changes, and reuses nothing in short runs
    plain, full = full_run(name, steps)
    pipe, call = zoo.load(name), zoo.sample_call(name, 0, steps, 1)
    setup = RaceSetup(name, steps)
    options = next(iter(peer.sweeps(setup)[0]))
    with counted_flops(pipe) as flops:
        with peer.attach(pipe, options, setup):
            cached, some = render(pipe, call).pictures, flops.total
        after, again = render(pipe, call).pictures, flops.total - some
    assert some < full
    assert not torch.equal(cached, plain)
    assert torch.equal(after, plain)
    assert again == full


@contextmanager
def broken(pipe: Any, options: Any, setup: RaceSetup) -> Iterator[None]:
    raise RuntimeError("no such thing")
    yield


def sweeping(*thresholds: float) -> Any:
    return lambda setup: (Sweep("threshold", thresholds),)


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"try": range(1), "choose": range(2), "score": range(2, 4)}
    for use, samples in few.items():
        monkeypatch.setitem(splits.PARTS, use, splits.Part("heldout", 0, samples))
    monkeypatch.setattr(track, "REFERENCE_STEPS", 12)


def race(folder: Path, contenders: list[Contender], commit: str = "a") -> RaceResult:
    header = {"commit": commit}
    return Race(RaceSetup("dit", STEPS), folder / "race.json", header, folder / "kept").run(contenders)


@pytest.mark.usefixtures("_short")
def test_a_small_race_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen_from = lambda setup: (Sweep("speedup", (2.0,)),)
    default = replace(named(ours.DEFAULT_NAME), sweeps=chosen_from)
    refusing = Contender("refusing", "somebody's", sweeping(1.0), broken)
    raced = race(tmp_path, [default, named(ours.SPEEDUP), refusing])
    assert raced.refused == {"somebody's: refusing": {"threshold=1.0": "RuntimeError: no such thing"}}
    (full,) = raced.of("full run", "score")
    assert full.compute == 1
    assert full.mean_psnr == pytest.approx(58.9)
    assert len(full.truth) == 2
    (tried,), (chosen,) = raced.of(default.full_name, "try"), raced.of(default.full_name, "choose")
    assert tried.compute == chosen.compute < 1
    assert len(chosen.psnr) == 2
    scored = raced.of(named(ours.SPEEDUP).full_name, "score")
    assert [row.options["speedup"] for row in scored] == [4.0, 2.0, 1.6]
    assert RaceResult.load(tmp_path / "race.json") == raced
    monkeypatch.setattr(track.Track, "measured", broken)
    again = race(tmp_path, [default, named(ours.SPEEDUP)], commit="b")
    assert again == raced


@pytest.mark.usefixtures("_short")
def test_a_solver_is_chosen_by_the_distance_to_the_true_solution(tmp_path: Path) -> None:
    knobs = lambda setup: tuple(Sweep("speedup", (2.0,), {"solver": name}) for name in ("own", "Euler"))
    cached = replace(named(ours.CACHED_SOLVER), sweeps=knobs)
    raced = race(tmp_path, [cached])
    tried = raced.of(cached.full_name, "try")
    assert {row.options["solver"] for row in tried} == {"own", "Euler"}
    assert raced.of(cached.full_name, "choose") == []
    (scored,) = raced.of(cached.full_name, "score")
    assert scored.options == max(tried, key=lambda row: row.mean_truth).options
    assert len(scored.truth) == len(scored.psnr) == 2


@pytest.mark.usefixtures("_short")
def test_without_a_true_solution_nothing_is_chosen_by_it(tmp_path: Path) -> None:
    raced = Race(RaceSetup("dit", STEPS), tmp_path / "race.json", {"commit": "a"}, None).run(
        [named(ours.CACHED_SOLVER)]
    )
    assert [row.contender for row in raced.rows] == [track.FULL]


@pytest.mark.usefixtures("_short")
def test_a_cell_agrees_with_itself_and_not_with_another(tmp_path: Path) -> None:
    contender = named(ours.SPEEDUP)
    raced = race(tmp_path, [contender])
    assert measured_again(tmp_path / "race.json", contender, 2.0).agrees
    raced.rows = [replace(row, psnr=[value + 10 for value in row.psnr]) for row in raced.rows]
    raced.save(tmp_path / "race.json")
    assert not measured_again(tmp_path / "race.json", contender, 2.0).agrees


@pytest.mark.usefixtures("_short")
def test_a_fault_of_our_own_is_not_published_as_a_refusal(tmp_path: Path) -> None:
    own = replace(named(ours.DEFAULT_NAME), attach=broken)
    with pytest.raises(RuntimeError, match="no such thing"):
        race(tmp_path, [own])


def test_the_true_solution_has_fewer_steps_than_the_model_was_trained_with() -> None:
    assert track._most_steps(zoo.load("pixart").scheduler) == 999


@pytest.mark.usefixtures("_short")
def test_a_true_solution_that_is_not_finite_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = Rendered(torch.full((2, 3, 8, 8), torch.nan), 0.0, 0.0)
    monkeypatch.setattr(track, "render_with_steps", lambda *_: nothing)
    with pytest.raises(EvaluationError, match="dit: the true solution is not finite"):
        race(tmp_path, [])
