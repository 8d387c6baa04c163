"""What is broken on purpose in the measurement of rows is what it says, and nothing else."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from zoo.pipelines import CASES

from diffcache import accelerate, report, restore
from diffcache.evals.experiments.row_controls import (
    elsewhere,
    farthest,
    text_left,
    true_key_values,
    true_outputs,
    withheld,
)
from diffcache.evals.experiments.row_sources import Importance, norms_of_keys
from diffcache.evals.experiments.rows import ORACLE, changed, ways_to_edit, ways_to_inpaint
from diffcache.evals.experiments.ways import Scene, measured_at
from diffcache.evals.testbeds import zoo
from diffcache.tokens.row_rule import Region, Sight

STEPS = 6
STICKERS = ["ghost with red apple", "anchor with star"]


def an_edit() -> Sight:
    """Of 8 x 8 tokens those in rows 4 to 6 and columns 4 to 6 are edited."""
    generator = torch.Generator().manual_seed(0)
    reference = torch.randn(1, 64, 8, generator=generator)
    clean = reference.clone()
    clean.view(1, 8, 8, 8)[:, 4:7, 4:7] *= -1
    noise = torch.randn(1, 64, 8, generator=generator)
    before, now = (torch.cat([(1 - s) * clean + s * noise, reference], 1) for s in (0.8, 0.7))
    return Sight(now, before, 0.7, 0.8, grid=(1, 8, 8))


def test_the_region_elsewhere_has_as_many_tokens_where_nothing_is_edited():
    sight = an_edit()
    own = Region(0.93)(sight)[0, :64].view(8, 8)
    with elsewhere():
        places = Region(0.93)(sight)
    other = places[0, :64].view(8, 8)
    assert 0 < own.sum() == other.sum()
    assert not (own & other).any()
    assert not places[0, 64:].any()
    assert torch.equal(Region(0.93)(sight)[0, :64].view(8, 8), own)  # and it is over


def test_of_a_large_region_as_little_as_can_be_is_computed_elsewhere():
    region = torch.ones(4, 4, dtype=torch.bool)
    region[0] = False
    assert farthest(region).sum() == 12
    assert farthest(region)[0].all()
    nothing = torch.zeros(4, 4, dtype=torch.bool)
    assert torch.equal(farthest(nothing), nothing)


def test_with_true_keys_and_values_an_edit_needs_its_region():
    """What a wrong region loses is not hidden by what keys and values that are carried on lose."""
    pipe = zoo.load("kontext")
    references = zoo.call_for("kontext", STICKERS, range(2), 1)["image"]
    scene = Scene(
        pipe,
        lambda steps: zoo.call_for("kontext", STICKERS, range(2), steps),
        lambda full: changed(full, references),
    )
    ways = [way for way in ways_to_edit() if way.name.startswith(ORACLE)]
    _, (right, _), (wrong, _) = measured_at(scene, ways, 14)
    assert right["work"] == wrong["work"]
    assert right["ticks"] == wrong["ticks"]
    assert right["region"][0] > 60
    assert wrong["lost"][1] > 20


def painted(breaking) -> torch.Tensor:
    """A quarter of a picture, painted beside keys and values of the rest."""
    case = CASES["FluxInpaintPipeline"]
    pipe = case.build()
    mask = torch.zeros(1, 1, 16, 16)
    mask[..., 8:, 8:] = 1
    if breaking is not None:
        accelerate(pipe, "uniform", interval=1, rows="mask")
    with (breaking or nullcontext)():
        picture = case.render(pipe, 0, STEPS, mask_image=mask)
    if breaking is not None:
        assert "%" in report(pipe).summary()
        restore(pipe)
    return picture


def test_with_true_keys_and_values_nothing_is_lost_in_a_pipeline_that_overwrites_the_rest():
    plain, some = painted(None), painted(nullcontext)
    assert not torch.allclose(some, plain, atol=1e-5)
    assert torch.allclose(painted(true_key_values), plain, atol=1e-5)
    assert torch.equal(painted(true_outputs), some)


@pytest.mark.parametrize("breaking", [withheld, text_left], ids=lambda f: f.__name__)
def test_other_controls_change_what_is_painted(breaking):
    some = painted(nullcontext)
    assert not torch.equal(painted(breaking), some)
    assert torch.equal(painted(nullcontext), some)  # and they are over


def test_a_control_computes_as_much_as_what_it_breaks():
    for ways in (ways_to_edit(), ways_to_inpaint()):
        known = {way.name: way for way in ways}
        assert len(known) == len(ways)
        for way in ways:
            if way.beside is not None:
                assert way.options == known[way.beside].options


def test_the_region_of_an_edit_is_where_pictures_differ_from_the_reference():
    references = torch.zeros(2, 3, 8, 8)
    pictures = references.clone()
    pictures[0, 1, 2, 3] = 0.2
    pictures[1, :, :4] = 0.05
    assert changed(pictures, references).nonzero().tolist() == [[0, 2, 3]]


def test_important_tokens_are_those_of_the_largest_score_and_by_turns_the_others():
    source = Importance(norms_of_keys, patch=1, share=0.25)
    source.scores = torch.tensor([[4.0, 3.0, 2.0, 1.0]])
    before, now = torch.zeros(1, 4, 2), torch.ones(1, 4, 2)
    chosen = [source(Sight(now, before)).nonzero()[:, 1].item() for _ in range(40)]
    assert chosen[0] == 0
    assert set(chosen) == {0, 1, 2, 3}
    now[:, 0] = 0  # a token that stands still
    assert not source(Sight(now, before))[0, 0]
