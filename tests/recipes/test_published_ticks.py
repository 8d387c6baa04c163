"""The published methods: which ticks they compute, worked out from the papers, the authors' code, or both."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers.hooks.mag_cache import FLUX_MAG_RATIOS

from diffcache import CacheConfig, methods
from diffcache.config import RunFacts
from diffcache.discovery.site_names import ranges_of
from diffcache.recipes.magcache import FLUX
from diffcache.recipes.profilingdit import HUNYUAN_SINGLE, WAN
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.guards import History
from diffcache.schedulers.signals import Drift
from diffcache.schedulers.steps import Step

FLUX_CLASS, HUNYUAN = "FluxTransformer2DModel", "HunyuanVideoTransformer3DModel"


def computed(
    config: CacheConfig, denoiser: str, ticks: int, site: str = "model", kind: str = "stack"
) -> list[int]:
    """The ticks that a static method computes at a site, guards included."""
    facts = RunFacts(denoiser, num_ticks=ticks)
    scheduler, guards = config.scheduler(facts), config.guards(facts)
    found: list[int] = []
    for tick in range(ticks):
        step = Step(tick, ticks, "0", site=site, kind=kind, training_time=1 - tick / ticks)
        forced = guards.forces_compute(step, History(found[-1] if found else None, None))
        if forced or scheduler.decide(step, None).computes:
            found.append(tick)
    return found


GOLDEN: list[tuple[str, dict[str, Any], str, int, list[int]]] = [
    ("taylorseer", {}, FLUX_CLASS, 50, [0, 1, 2, 8, 14, 20, 26, 32, 38, 44]),
    ("taylorseer", {}, HUNYUAN, 50, list(range(0, 50, 5))),
    ("taylorseer", {}, "DiTTransformer2DModel", 50, [0, *range(1, 50, 4)]),
    ("taylorseer", {}, "HiDreamImageTransformer2DModel", 50, list(range(0, 50, 4))),
    ("magcache", {}, FLUX_CLASS, 28, [0, 1, 2, 5, 9, 11, 17, 23, 26]),
    (
        "magcache",
        {"threshold": 0.06, "max_consecutive_reuses": 3, "warmup_steps": 6, "ratios": FLUX},
        FLUX_CLASS,
        28,
        [0, 1, 2, 3, 4, 5, 7, 9, 13, 17, 21, 24, 26, 27],
    ),
    (
        "magcache",
        {"threshold": 9.0, "max_consecutive_reuses": 2, "warmup_steps": 0, "ratios": (1.0,) * 10},
        FLUX_CLASS,
        10,
        [0, 3, 6, 9],
    ),  # the first tick is none of the two that are reused
    ("deepcache", {}, "UNet2DConditionModel", 10, [0, 3, 6, 9]),
    (
        "deepcache",
        {"interval": 5, "spacing": "power"},
        "UNet2DConditionModel",
        50,
        [0, 5, 9, 13, 17, 21, 26, 31, 37, 43],
    ),
    ("fora", {}, "DiTTransformer2DModel", 10, [0, 3, 6, 9]),
    ("spectrum", {}, FLUX_CLASS, 50, [*range(5), 6, 8, 11, 15, 20, 25, 31, 38, 46]),
    ("spectrum", {"growth": 3}, FLUX_CLASS, 50, [*range(5), 6, 11, 19, 30, 44]),
    (
        "speca",
        {},
        FLUX_CLASS,
        50,
        [0, 1, 2, 11, 20, 29, 38, 47],
    ),  # where every draft is accepted: eight in a row
    ("speca", {}, HUNYUAN, 30, [0, 13, 26]),
    ("dpcache", {"ticks": (0, 1, 2, 7, 12, 16)}, FLUX_CLASS, 20, [0, 1, 2, 7, 12, 16]),
    ("dpcache", {}, FLUX_CLASS, 12, [0, 1, 2, 6, 10]),
    ("meancache", {"budget": 10}, FLUX_CLASS, 50, [0, 1, 3, 7, 14, 21, 28, 35, 42, 49]),
    (
        "meancache",
        {"budget": 13},
        "ZImageTransformer2DModel",
        50,
        [0, 1, 2, 3, 5, 9, 15, 22, 29, 36, 43, 47, 49],
    ),
    ("profilingdit", {}, "WanTransformer3DModel", 50, [*range(6), *range(6, 50, 6)]),
]


@pytest.mark.parametrize(("method", "options", "denoiser", "ticks", "golden"), GOLDEN)
def test_decisions_are_the_published_ones(
    method: str, options: dict[str, Any], denoiser: str, ticks: int, golden: list[int]
) -> None:
    assert computed(methods()[method](**options), denoiser, ticks) == golden


def test_profilingdit_refreshes_hunyuan_at_shrinking_intervals() -> None:
    config = methods()["profilingdit"]()
    single = computed(config, HUNYUAN, 50, site="single_transformer_blocks.2")
    assert single == [*range(6), 6, 18, 26, 32, 38, 42, 46, 48]
    assert len(single) == 14
    assert computed(config, HUNYUAN, 50, site="transformer_blocks.6..transformer_blocks.19") == [
        *range(6),
        *range(6, 50, 6),
    ]


def test_profilingdit_keeps_one_residual_for_each_run_of_blocks() -> None:
    assert ranges_of("b", HUNYUAN_SINGLE) == [
        "b.0", "b.2", "b.4..b.7", "b.10..b.21", "b.23", "b.25..b.27", "b.31", "b.33",
    ]  # fmt: skip
    assert (len(HUNYUAN_SINGLE), len(WAN)) == (24, 28)
    config = methods()["profilingdit"]()
    wan = RunFacts("WanTransformer3DModel", blocks={"blocks": 40})
    assert config.sites(wan) == (
        "blocks.0", "blocks.2..blocks.7", "blocks.10..blocks.20", "blocks.25..blocks.32", "blocks.37..blocks.38",
    )  # fmt: skip
    assert config.sites(RunFacts("WanTransformer3DModel", blocks={"blocks": 30})) == ("stack[1..]",)


def test_pab_has_an_interval_for_each_kind_inside_its_window() -> None:
    config = methods()["pab"](window=(0.2, 0.85))
    inside = [tick for tick in range(20) if 0.2 < 1 - tick / 20 < 0.85]
    outside = [tick for tick in range(20) if tick not in inside]
    for site, kind, interval in [
        ("blocks.0.attn1", "self-attention", 2),
        ("temporal_blocks.0.attn1", "self-attention", 4),
        ("blocks.0.attn2", "cross-attention", 6),
    ]:
        due = [tick for tick in inside if tick % interval == 0]
        assert computed(config, "LatteTransformer3DModel", 20, site, kind) == sorted(outside + due)


@pytest.mark.parametrize(
    ("gate", "interval", "of_self"),
    [
        (10, 5, [0, 1, 2, 5, *range(9, 25)]),  # SDXL
        (15, 3, [0, 1, 2, 3, 6, 9, 12, *range(14, 25)]),  # PixArt
    ],
)
def test_tgate_computes_the_ticks_of_the_authors_examples(
    gate: int, interval: int, of_self: list[int]
) -> None:
    config = methods()["tgate"](gate=gate / 25, interval=interval)  # type: ignore[call-arg]
    denoiser = "PixArtTransformer2DModel"
    assert computed(config, denoiser, 25, kind="cross-attention") == list(range(gate))
    assert computed(config, denoiser, 25, kind="self-attention") == of_self


@pytest.mark.parametrize("kind", ["cross-attention", "self-attention"])
@pytest.mark.parametrize("method", ["tgate", "magcache", "meancache"])
def test_a_method_that_goes_by_the_runs_length_computes_everything_without_it(method: str, kind: str) -> None:
    options = {"interval": 3} if method == "tgate" else {}
    scheduler = methods()[method](**options).scheduler(RunFacts("X"))
    assert all(scheduler.decide(Step(tick, None, "0", kind=kind), None).computes for tick in range(60))


def test_flux_ratios_are_those_that_diffusers_ships() -> None:
    torch.testing.assert_close(torch.tensor(FLUX), FLUX_MAG_RATIOS)


@pytest.mark.parametrize("method", CacheConfig.methods())
def test_every_method_has_a_setting_that_computes_everything(method: str) -> None:
    kind = methods()[method]
    static = {
        "interval": 1,
        "temporal_interval": 1,
        "cross_interval": 1,
        "gate": 1.0,
        "threshold": 0.0,
        "speedup": 1.0,
        "growth": 0.0,
        "budget": 50,
    }
    options = {name: value for name, value in static.items() if name in kind.__dataclass_fields__}
    config = kind(**options)
    if config.scheduler(RunFacts("X", num_ticks=12)).adaptive:
        assert {*options} <= {"threshold", "speedup"}
    else:
        for site, kind_of_site in (("a", "cross-attention"), ("a", "self-attention"), ("a", "stack")):
            assert computed(config, "X", 12, site, kind_of_site) == list(range(12))


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("fbcache", {"threshold": -1}),
        ("teacache", {"coefficients": "x"}),
        ("teacache", {"coefficients": (float("nan"),)}),
        ("magcache", {"ratios": ()}),
        ("magcache", {"predictor": "guess"}),
        ("taylorseer", {"order": -1}),
        ("taylorseer", {"interval": 0}),
        ("deepcache", {"depth": 0}),
        ("deepcache", {"spacing": "odd"}),
        ("pab", {"window": (1, 2, 3)}),
        ("tgate", {"gate": "late"}),
        ("profilingdit", {"interval": 1.5}),
        ("fora", {"interval": True}),
        ("spectrum", {"interval": 0.5}),
        ("spectrum", {"mixture": -1}),
        ("speca", {"threshold": -1}),
        ("speca", {"unverified": 0.5}),
        ("speca", {"order": -1}),
        ("dpcache", {"ticks": (1, 2)}),
        ("dpcache", {"ticks": (0, 2, 2)}),
        ("dpcache", {"order": 0}),
        ("meancache", {"budget": 0}),
        ("meancache", {"ticks": "all"}),
        ("meancache", {"backs": ("x",)}),
        ("seacache", {"threshold": -1}),
        ("seacache", {"order": 2}),
    ],
)
def test_a_bad_option_is_refused_by_name(method: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"^{method}: {next(iter(options))} must be"):
        methods()[method](**options)


def test_drift_is_measured_since_the_previous_or_the_last_computed_tick() -> None:
    for since, expected in (("previous", 1 / 3), ("computed", 1.0)):
        signal = Drift(since)  # type: ignore[arg-type]
        assert signal.measure([torch.tensor([2.0])]) is None
        for value, is_computed in ((2.0, True), (3.0, False)):
            signal.arrived([torch.tensor([value])])
            if is_computed:
                signal.computed([torch.tensor([value])], [])
        measured = signal.measure([torch.tensor([4.0])])
        assert measured is not None
        assert measured.item() == pytest.approx(expected)


def test_drift_is_rescaled_by_a_polynomial_with_the_highest_power_first() -> None:
    signal = Drift("previous", (2.0, 0.0, 0.5))
    signal.arrived([torch.tensor([1.0, -1.0])])
    measured = signal.measure([torch.tensor([4.0, -4.0])])
    assert measured is not None
    assert measured.item() == pytest.approx(2 * 3.0**2 + 0.5)


@pytest.mark.parametrize("denoiser", ["CogVideoXTransformer3DModel", "FluxTransformer2DModel"])
def test_threshold_0_computes_also_where_the_polynomial_is_below_0(denoiser: str) -> None:
    """CogVideoX's gives -0.05 where nothing changes."""
    config = methods()["teacache"](threshold=0.0)  # type: ignore[call-arg]
    scheduler = config.scheduler(RunFacts(denoiser, num_ticks=10))
    scheduler.arrived([torch.ones(2)])
    for tick in range(1, 9):
        signal = scheduler.measure([torch.ones(2)])
        assert signal is not None
        assert scheduler.decide(Step(tick, 10, "0", training_time=1 - tick / 10), signal.tolist()).computes


def test_spectrum_without_a_warm_up_begins_with_a_computed_tick() -> None:
    found = computed(methods()["spectrum"](warmup_steps=0), FLUX_CLASS, 10)  # type: ignore[call-arg]
    assert found[0] == 0
    assert len(found) < 10
