"""Routers trained in a pipeline's own loop: training sees what is exported, and continues where it was interrupted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.searches.flux_calls import FLUX, flux_calls
from zoo.pipelines import CASES

from diffcache import Schedule, accelerate, report, restore
from diffcache.profiling.recording.pictures import pictures_of
from diffcache.profiling.recording.record import record
from diffcache.profiling.searching import routing
from diffcache.profiling.searching.checkpoints import log_line
from diffcache.profiling.searching.routing import PipelineDenoiser, routed, train_router
from diffcache.profiling.searching.space import Space
from diffcache.schedulers.errors import ConfigError, ScheduleError
from diffcache.schedulers.search.harmonica import Training
from diffcache.schedulers.search.router import Gates, Router
from diffcache.schedulers.search.seeds import every

STEPS = 5
TRAINING = Training(target=0.5, runs=4, lr=0.5, proxy_every=2)


def made(case: str) -> tuple[Any, list[dict[str, Any]], Space]:
    """A pipeline, a call, and its sub-layers."""
    pipe, calls = CASES[case].build(), [CASES[case].call(0, STEPS)]
    return pipe, calls, Space(record(pipe, calls, sites="sub-layer"))


@pytest.mark.parametrize("case", ["FluxPipeline", "PixArtAlphaPipeline"])
def test_training_sees_the_pictures_of_the_exported_schedule(case: str) -> None:
    pipe, calls, space = made(case)
    table = every(STEPS, len(space.sites), 2)
    table[1, ::2] = True
    with torch.no_grad():
        gates = Gates(Router.of_table(table).scores())
        student = PipelineDenoiser(pipe, calls[0], space).run(0, gates, None)
    accelerate(pipe, space.schedule(table, {}))
    assert torch.equal(pictures_of((CASES[case].render(pipe, 0, STEPS),)), student)
    assert 0 < report(pipe).compute_fraction < 1


def test_a_student_that_computes_everything_equals_its_teacher() -> None:
    pipe, calls, space = made("PixArtAlphaPipeline")
    told: list[tuple[int, bool]] = []
    gates = Gates(torch.ones(STEPS, len(space.sites), requires_grad=True))
    PipelineDenoiser(pipe, calls[0], space).run(
        0, gates, lambda tick, teacher, student: told.append((tick, torch.equal(teacher, student)))
    )
    assert told == [(tick, True) for tick in range(1, STEPS)]


def test_training_leaves_the_pipeline_as_it_was_and_continues_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe, calls, space = made("FluxPipeline")
    before = FLUX.render(pipe, 0, STEPS)
    parameter = next(pipe.transformer.parameters())
    seed = calls[0]["generator"].initial_seed()
    asked, cls = parameter.requires_grad, type(pipe.transformer)
    begin = every(STEPS, len(space.sites), 2)
    whole = train_router(pipe, calls, space, tmp_path / "whole", TRAINING, begin=begin)
    assert type(pipe.transformer) is cls
    assert calls[0]["generator"].initial_seed() == seed
    assert parameter.requires_grad == asked
    assert parameter.grad is None
    assert torch.equal(FLUX.render(pipe, 0, STEPS), before)
    assert not torch.equal(whole.logits, Router.of_table(begin).logits)

    saved = 0

    def dies(path: Path, line: Any) -> None:
        nonlocal saved
        saved += 1
        log_line(path, line)
        if saved == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(routing, "log_line", dies)
    with pytest.raises(KeyboardInterrupt):
        train_router(pipe, calls, space, tmp_path / "dies", TRAINING, begin=begin)
    monkeypatch.undo()
    resumed = train_router(pipe, calls, space, tmp_path / "dies", TRAINING, begin=begin)
    assert torch.equal(resumed.logits, whole.logits)
    assert len((tmp_path / "dies" / "router.jsonl").read_text().splitlines()) == TRAINING.runs
    with pytest.raises(ScheduleError, match="belongs to a search with another lr: choose another folder"):
        train_router(pipe, calls, space, tmp_path / "dies", replace(TRAINING, lr=0.1), begin=begin)
    other = {name: replace(model, config="other") for name, model in space.recording.models.items()}
    elsewhere = replace(space, recording=replace(space.recording, models=other))
    with pytest.raises(ScheduleError, match="belongs to a search with another models: choose another folder"):
        train_router(pipe, calls, elsewhere, tmp_path / "dies", TRAINING, begin=begin)


def test_a_saved_schedule_keeps_its_scores_and_costs_what_it_says(tmp_path: Path) -> None:
    pipe, _, space = made("FluxPipeline")
    scores = torch.randn(STEPS, len(space.sites), generator=torch.Generator().manual_seed(0))
    router = Router(scores)
    saved = Schedule.from_pretrained(routed(router, space, 0.5).save_pretrained(tmp_path))
    assert bool(torch.tensor(saved.producer["scores"]).equal(router.scores()))  # close ones keep their order
    accelerate(pipe, saved)
    FLUX.render(pipe, 0, STEPS)
    assert report(pipe).compute_fraction == pytest.approx(saved.measured["compute_fraction"], abs=1e-4)
    restore(pipe)
    with pytest.raises(ConfigError, match="does not pay for one tick"):
        routed(router, space, 0.05)


def test_a_router_starts_only_at_a_table_of_its_own_shape(tmp_path: Path) -> None:
    pipe, calls, space = made("FluxPipeline")
    begin = every(STEPS + 2, len(space.sites), 2)
    with pytest.raises(ConfigError, match=r"begin: a table of \[7, \d+\] ticks and sites; give one of \[5,"):
        train_router(pipe, calls, space, tmp_path, TRAINING, begin=begin)


def test_a_router_needs_sub_layers() -> None:
    pipe, calls = FLUX.build(), flux_calls(STEPS, 1)
    space = Space(record(pipe, calls, sites="model"))
    with pytest.raises(ConfigError, match="transformer is no sub-layer: record with sites='sub-layer'"):
        PipelineDenoiser(pipe, calls[0], space)
