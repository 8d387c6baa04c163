"""A callback that replaces the latents: what was computed from the old ones is not reused for the new ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from zoo.pipelines import CASES

from diffcache import accelerate, report
from diffcache.recipes.even import EvenConfig

STEPS = 8


def drawn(config: Any, flipped: tuple[int, ...], in_place: bool = False) -> tuple[Tensor, Any]:
    case = CASES["FluxPipeline"]
    pipe = case.build()
    if config is not None:
        accelerate(pipe, config)

    def flip(pipe: Any, step: int, time: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        if step in flipped:
            other = tensors["latents"].flip(1)
            tensors["latents"] = tensors["latents"].copy_(other) if in_place else other
        return tensors

    return case.render(pipe, 0, STEPS, callback_on_step_end=flip), pipe


@pytest.mark.parametrize("in_place", [False, True])
def test_the_step_after_it_is_computed_and_nothing_before_it_is_corrected(in_place: bool) -> None:
    config = EvenConfig(speedup=2, tail_steps=0)  # computes 0, 2, 4 and 6
    _, pipe = drawn(config, (2,), in_place)
    assert report(pipe).computed_ticks == [0, 2, 3, 4, 6]
    assert any("a callback has replaced the latents before step 3" in note for note in report(pipe).notes)


def test_one_that_does_so_after_every_step_is_a_part_of_the_loop() -> None:
    _, pipe = drawn(EvenConfig(speedup=2, tail_steps=0), tuple(range(STEPS)))
    assert report(pipe).computed_ticks == [0, 1, 2, 4, 6]
    told = [note for note in report(pipe).notes if "callback" in note]
    assert len(told) == 2
    assert "before steps 1, 2:" in told[0]
    assert "from step 3 on that counts as a part of the loop" in told[1]


def test_many_steps_at_which_latents_are_replaced_are_one_note() -> None:
    _, pipe = drawn(EvenConfig(speedup=2, tail_steps=0), (1, 3, 5))
    told = [note for note in report(pipe).notes if "callback" in note]
    assert len(told) == 1
    assert "before steps 2, 4, 6:" in told[0]


def test_where_nothing_could_be_reused_because_latents_were_replaced_the_speedup_is_not_blamed() -> None:
    case = CASES["FluxPipeline"]
    pipe = accelerate(case.build(), EvenConfig(speedup=2, tail_steps=0))

    def flip(pipe: Any, step: int, time: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        return {"latents": tensors["latents"].flip(1)} if step % 2 == 0 else tensors

    case.render(pipe, 0, 12, callback_on_step_end=flip)
    first, *others = report(pipe).notes
    assert first.startswith("nothing was reused")
    assert "leaves nothing" not in first
    assert any("before steps 1, 3, 5, 7 and 2 more:" in note for note in others)


def test_after_two_steps_in_a_row_both_are_noticed() -> None:
    _, pipe = drawn(EvenConfig(speedup=4, tail_steps=0), (2, 3))
    assert {3, 4} <= {*report(pipe).computed_ticks}
    assert any("before steps 3, 4:" in note for note in report(pipe).notes)


def test_two_callbacks_that_do_so_after_every_step_are_a_part_of_the_loop() -> None:
    case = CASES["StableDiffusionPipeline"]
    pipe = accelerate(case.build(), "even", speedup=2)

    def old(step: int, time: Any, latents: Tensor) -> None:
        latents.mul_(1.0)

    def new(pipe: Any, step: int, time: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        return {"latents": tensors["latents"] * 1.0}

    case.render(pipe, 0, STEPS, callback_on_step_end=new, callback=old, callback_steps=1)
    assert len(report(pipe).computed_ticks) < STEPS


def test_one_after_the_last_step_changes_nothing() -> None:
    _, pipe = drawn(EvenConfig(speedup=2, tail_steps=0), (STEPS - 1,))
    assert report(pipe).computed_ticks == [0, 2, 4, 6]
    assert not any("callback" in note for note in report(pipe).notes)


def test_one_that_hands_back_what_it_was_given_changes_nothing() -> None:
    plain, _ = drawn(None, ())
    full, _ = drawn(EvenConfig(speedup=1), ())
    assert torch.equal(plain, full)
    _, pipe = drawn(EvenConfig(speedup=2, tail_steps=0), ())
    assert report(pipe).computed_ticks == [0, 2, 4, 6]
    assert not any("callback" in note for note in report(pipe).notes)
