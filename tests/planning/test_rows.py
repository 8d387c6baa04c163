"""What a plan says of some tokens: the work, and the bytes of keys and values."""

from __future__ import annotations

import pytest
import torch
from zoo.pipelines import CASES

from diffcache import ConfigError, accelerate, plan, report, restore

STEPS = 4


def mask(size: int) -> torch.Tensor:
    found = torch.zeros(size, size, dtype=torch.bool)
    found[: size // 2, : size // 2] = True
    return found


def left(size: int) -> torch.Tensor:
    """Of two samples the first is computed above, the second below."""
    found = torch.zeros(2, size, size, dtype=torch.bool)
    found[0, : size // 2, : size // 2] = found[1, size // 2 :, : size // 2] = True
    return found


PLANNED = [
    ("FluxKontextPipeline", {}, {}),
    ("FluxKontextPipeline", {"cache_dtype": "int8"}, {}),
    ("FluxKontextPipeline", {"rows": "context"}, {}),
    ("FluxPipeline-true-cfg", {}, {}),
    ("FluxPipeline", {"rows": left(16)}, {"num_images_per_prompt": 2}),
]  # WanPipeline of the zoo has two tokens: too few


@pytest.mark.parametrize(("name", "options", "call"), PLANNED, ids=str)
def test_bytes_and_work_are_as_planned(name, options, call):
    case = CASES[name]
    pipe = case.build()
    accelerate(pipe, "uniform", **{"interval": 1, "rows": mask(16), **options})
    foreseen = plan(pipe, **case.call(0, STEPS) | call)
    case.render(pipe, 0, STEPS, **call)
    done = report(pipe)
    restore(pipe)
    assert "%" in done.summary()
    assert done.cache_bytes == pytest.approx(foreseen.cache_bytes, rel=0.01)
    assert done.compute_fraction == pytest.approx(foreseen.compute_fraction, rel=0.01)
    (tokens,) = [site for site in foreseen.sites if site.kind == "tokens"]
    assert 0 < tokens.cache_bytes < foreseen.cache_bytes


@pytest.mark.parametrize(
    "method", [{"config": "regione"}, {"config": "uniform", "interval": 1, "rows": "region"}], ids=str
)
def test_the_mask_of_a_region_counts_in_a_plan(method):
    case = CASES["FluxKontextPipeline"]
    pipe = accelerate(case.build(), **method)
    foreseen = plan(pipe, **case.call(0, 20))
    case.render(pipe, 0, 20)
    assert "%" in report(pipe).summary()
    assert report(pipe).cache_bytes == foreseen.cache_bytes


def test_a_bound_on_bytes_holds_with_rows_and_one_that_is_too_tight_is_refused():
    case = CASES["FluxKontextPipeline"]

    def bounded(bound):
        return accelerate(case.build(), "uniform", interval=1, rows=mask(16), max_cache_bytes=bound)

    pipe = bounded(None)
    case.render(pipe, 0, STEPS)
    full = report(pipe).cache_bytes
    formats = []
    for bound in (full, full - 1, int(0.4 * full)):
        pipe = bounded(bound)
        case.render(pipe, 0, STEPS)
        assert report(pipe).cache_bytes <= bound
        assert "%" in report(pipe).summary()
        formats.append(" ".join(report(pipe).notes))
    assert formats == ["", "features are kept in bfloat16", "features are kept in int8"]
    with pytest.raises(ConfigError, match="cannot do with less"):
        case.render(bounded(full // 20), 0, STEPS)


def test_with_a_bound_on_bytes_each_call_has_its_own_mask():
    """Two calls that differ in nothing but the content of their masks."""
    case = CASES["FluxInpaintPipeline"]
    pipe = case.build()
    masks = [chosen[None, None].float() for chosen in (mask(16), mask(16).flip(0))]

    def rendered(bound):
        accelerate(pipe, "uniform", interval=1, rows="mask", max_cache_bytes=bound)
        return [case.render(pipe, 0, 6, mask_image=each) for each in masks]

    for bounded, free in zip(rendered(2**30), rendered(None), strict=True):
        assert torch.equal(bounded, free)


@pytest.mark.parametrize("method", [{"config": "regione"}, {"rows": "region"}])
def test_a_region_that_only_the_run_knows_is_said_to_be_unknown(method):
    case = CASES["FluxKontextPipeline"]
    pipe = accelerate(case.build(), **method)
    assert "an edit's region is known in the run only" in str(plan(pipe, **case.call(0, STEPS)))
    accelerate(pipe, rows="context")
    assert "region" not in str(plan(pipe, **case.call(0, STEPS)))
