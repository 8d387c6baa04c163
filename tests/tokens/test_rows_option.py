"""`rows=` in pipelines: a mask, the pipeline's own, context, an edit's region; and what is refused."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
import torch
from diffusers.image_processor import VaeImageProcessor
from PIL import Image
from zoo.denoisers import CASES as DENOISERS
from zoo.pipeline_case import picture
from zoo.pipelines import CASES

from diffcache import accelerate, denoising_run, report, restore
from diffcache.api import method_named
from diffcache.host.call import Call
from diffcache.recipes.with_rows import WithRows, mask_of, source_of
from diffcache.schedulers.errors import ConfigError, ScheduleError
from diffcache.tokens.grids import grid_of, grid_told, over_channels, places_in, resized
from diffcache.tokens.row_rule import FullCalls, Masked, Moving, Region, Sight

EVERY_TICK = {"config": "uniform", "interval": 1}


def quarter(size: int = 16) -> torch.Tensor:
    mask = torch.zeros(size, size, dtype=torch.bool)
    mask[: size // 2, : size // 2] = True
    return mask


@pytest.mark.parametrize("rows", ["context", "region", quarter()], ids=["context", "region", "mask"])
def test_a_reference_is_computed_at_full_ticks_only(rows):
    case = CASES["FluxKontextPipeline"]
    pipe = case.build()
    plain = case.render(pipe, 0, 4)
    accelerate(pipe, rows=rows, **EVERY_TICK)
    picture, done = case.render(pipe, 0, 4), report(pipe)
    assert [call.mark for call in done.calls if call.cached] == ["#", "%", "%", "#"]
    assert 0 < done.calls[1].computed < 1
    assert picture.isfinite().all()
    assert not torch.equal(picture, plain)
    restore(pipe)
    assert torch.equal(case.render(pipe, 0, 4), plain)


def test_an_inpainting_pipeline_has_a_mask_of_its_own():
    case = CASES["FluxInpaintPipeline"]
    pipe = case.build()
    accelerate(pipe, rows="mask", **EVERY_TICK)
    mask = quarter()[None, None].float()
    case.render(pipe, 0, 6, mask_image=mask)
    own = report(pipe)
    accelerate(pipe, rows=quarter(), **EVERY_TICK)
    case.render(pipe, 0, 6, mask_image=mask)
    assert "%" in own.summary()
    assert own.compute_fraction == report(pipe).compute_fraction < 1


def test_a_pipeline_without_a_mask_is_told_so():
    case = CASES["FluxPipeline"]
    pipe = accelerate(case.build(), rows="mask")
    with pytest.raises(ConfigError, match="mask_image of an inpainting pipeline"):
        case.render(pipe, 0, 4)


def test_a_mask_image_may_be_a_picture_an_array_or_a_tensor():
    white = np.zeros((8, 6), dtype=np.uint8)
    white[:4] = 255
    expected = torch.from_numpy(white > 0)[None]
    forms = (
        white,
        white[..., None],
        Image.fromarray(white),
        Image.fromarray(white).convert("RGB"),
        torch.from_numpy(white / 255),
        torch.from_numpy(white / 255)[None, None],
    )
    for form in forms:
        assert torch.equal(mask_of(form), expected)
        assert torch.equal(mask_of([form, form]), expected.repeat(2, 1, 1))


def test_masks_of_a_batch_may_differ_in_size():
    """Diffusers stretches each over its picture, and so are these."""
    case = CASES["FluxInpaintPipeline"]
    pipe = case.build()
    small, large = (Image.fromarray(quarter(size).numpy()) for size in (16, 32))
    accelerate(pipe, rows="mask", **EVERY_TICK)
    names = ("image", "prompt_embeds", "pooled_prompt_embeds")
    two = {name: case.call(0, 6)[name].repeat_interleave(2, 0) for name in names}
    both = [case.render(pipe, 0, 6, mask_image=[small, other], **two) for other in (small, large)]
    assert "%" in report(pipe).summary()
    assert torch.equal(*both)


def test_a_picture_of_any_mode_is_read_as_diffusers_reads_it():
    """An indexed picture whose first colour is white; one with transparency; and a green that counts as white."""
    white = np.zeros((8, 6), dtype=np.uint8)
    white[:4] = 1
    indexed = Image.fromarray(1 - white, mode="P")
    indexed.putpalette([255, 255, 255, 0, 0, 0])
    green = Image.fromarray(white[..., None] * np.array([0, 255, 0], dtype=np.uint8))
    for form in (indexed, Image.fromarray(white * 255).convert("LA"), Image.fromarray(white > 0), green):
        own = VaeImageProcessor(
            vae_scale_factor=1, do_normalize=False, do_binarize=True, do_convert_grayscale=True
        )
        painted = own.preprocess(form, 8, 6)[:, 0] > 0
        assert torch.equal(mask_of(form), painted)
        assert torch.equal(painted, torch.from_numpy(white > 0)[None])


def test_a_mask_of_a_picture_that_is_cropped_is_refused():
    case = CASES["FluxInpaintPipeline"]
    pipe = accelerate(case.build(), rows="mask")
    with pytest.raises(ConfigError, match="padding_mask_crop"):
        case.render(pipe, 0, 4, mask_image=quarter()[None, None].float(), padding_mask_crop=2)


@pytest.mark.parametrize("name", ["FluxPipeline", "FluxPipeline-true-cfg", "PixArtAlphaPipeline"])
def test_a_picture_of_a_batch_with_its_own_mask_is_as_if_it_were_alone(name):
    case = CASES[name]
    pipe = case.build()
    masks = torch.stack([quarter(), quarter().flip(0)])

    def rendered(rows, seeds):
        accelerate(pipe, rows=rows, **EVERY_TICK)
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        pictures = case.render(pipe, 0, 6, generator=generators, num_images_per_prompt=len(seeds))
        assert "%" in report(pipe).summary()
        return pictures, report(pipe).compute_fraction

    both, work = rendered(masks, (0, 1))
    alone = [rendered(masks[i], (i,)) for i in range(2)]
    assert torch.allclose(both, torch.cat([picture for picture, _ in alone]), atol=1e-5)
    assert work == pytest.approx(alone[0][1])


@pytest.mark.parametrize("name", ["FluxPipeline-true-cfg", "StableDiffusion3Pipeline", "CogVideoXPipeline"])
def test_a_mask_of_everything_is_the_plain_pipeline(name):
    case = CASES[name]
    pipe = case.build()
    plain = case.render(pipe, 0, 5)
    accelerate(pipe, rows=torch.ones(16, 16, dtype=torch.bool), **EVERY_TICK)
    assert torch.equal(case.render(pipe, 0, 5), plain)
    assert report(pipe).compute_fraction == 1


def test_a_picture_of_a_mask_is_that_mask():
    picture = Image.fromarray(quarter().numpy().astype("uint8") * 255)
    assert torch.equal(source_of(picture).mask[0], quarter())
    with pytest.raises(ConfigError, match="something in it"):
        source_of(Image.new("L", (16, 16)))


@pytest.mark.parametrize(
    "method", [{"config": "regione"}, {"rows": "context", **EVERY_TICK}, {"rows": "region"}]
)
def test_without_a_reference_the_report_says_so(method):
    case = CASES["FluxPipeline"]
    pipe = accelerate(case.build(), **method)
    case.render(pipe, 0, 6)
    assert "there is no reference" in report(pipe).summary()


def test_a_method_by_name_takes_rows_as_the_command_passes_them():
    config = method_named("uniform", interval=2, rows="region")
    assert isinstance(config, WithRows)
    assert isinstance(config.source, Region)
    with pytest.raises(ConfigError, match="give a mask, or one of"):
        method_named("uniform", rows="edit")


@pytest.mark.parametrize("steps", [8, 28])
def test_ticks_and_rows_combine(steps):
    case = CASES["FluxKontextPipeline"]
    pipe = accelerate(case.build(), speedup=2, rows="context")
    case.render(pipe, 0, steps)
    both = report(pipe)
    accelerate(pipe, speedup=2)
    case.render(pipe, 0, steps)
    assert set("#%") <= set(both.summary())
    assert both.computed_ticks == report(pipe).computed_ticks
    assert both.compute_fraction < report(pipe).compute_fraction


@pytest.mark.parametrize(
    "rows", [torch.zeros(4, 4, dtype=torch.bool), torch.ones(4, 4), torch.ones(4, dtype=torch.bool), "everything", 3], ids=str
)  # fmt: skip
def test_other_values_are_refused(rows):
    net = DENOISERS["FluxTransformer2DModel"].build()
    with pytest.raises(ConfigError, match="rows"):
        accelerate(net, rows=rows)
    with torch.no_grad(), denoising_run(net, 4) as run:
        assert run.config is None  # nothing is attached


@pytest.mark.parametrize("method", ["fora", "deepcache"])
def test_methods_with_sites_inside_are_refused(method):
    name = "UNet2DConditionModel" if method == "deepcache" else "FluxTransformer2DModel"
    with pytest.raises(ConfigError, match="rows= goes with methods that cache whole calls"):
        accelerate(DENOISERS[name].build(), method, rows=quarter())


def test_a_schedule_of_a_run_with_rows_replays_its_ticks_and_is_told_the_rows_again(caplog):
    case = CASES["FluxKontextPipeline"]
    pipe = accelerate(case.build(), "uniform", interval=2, rows="context")
    picture = case.render(pipe, 0, 6)
    done = report(pipe)
    accelerate(pipe, done.to_schedule(), rows="context")
    assert not caplog.messages
    assert torch.equal(case.render(pipe, 0, 6), picture)
    accelerate(pipe, done.to_schedule())
    assert "pass rows= as well" in caplog.text
    case.render(pipe, 0, 6)
    assert report(pipe).computed_ticks == done.computed_ticks


def test_a_run_that_chose_its_tokens_itself_is_no_schedule():
    case = CASES["FluxKontextPipeline"]
    pipe = accelerate(case.build(), "regione")
    case.render(pipe, 0, 28)
    with pytest.raises(ScheduleError, match="it chose the tokens"):
        report(pipe).to_schedule()


def test_a_mask_is_laid_over_the_tokens():
    mask = quarter(8)[None]
    assert resized(mask, 4, 4)[0].sum() == 4
    packed = torch.zeros(1, 20, 3)
    moving = torch.ones(1, 20, dtype=torch.bool)
    moving[:, 16:] = False  # a reference of four tokens
    places = places_in(packed, mask, moving)
    assert places.nonzero()[:, 1].tolist() == [0, 1, 4, 5]
    assert places_in(torch.zeros(1, 3, 4, 4), mask, moving)[0].nonzero().tolist() == [
        [0, 0],
        [0, 1],
        [1, 0],
        [1, 1],
    ]


def test_a_grid_has_the_shape_of_the_mask():
    assert grid_of(32, 64, 128) == (4, 8)
    with pytest.raises(ConfigError, match="make no grid"):
        grid_of(15, 64, 64)


def test_masks_repeat_over_guidance_passes_and_must_fit_the_batch():
    latent = torch.zeros(4, 6, 2)
    places = torch.tensor([[True] + [False] * 5, [False] * 5 + [True]])
    assert over_channels(places, latent)[:, :, 0].nonzero().tolist() == [[0, 0], [1, 5], [2, 0], [3, 5]]
    with pytest.raises(ConfigError, match="3 masks do not fit 4 samples"):
        over_channels(torch.zeros(3, 6, dtype=torch.bool), latent)


def test_sources_look_at_what_moves():
    before, now = torch.zeros(1, 5, 2), torch.zeros(1, 5, 2)
    now[:, :4] = 1
    sight = Sight(now, before)
    assert Moving()(sight).tolist() == [[True] * 4 + [False]]
    mask = torch.tensor([[True, False], [False, False]])
    assert Masked(mask)(sight).tolist() == [[True] + [False] * 4]


def test_which_calls_compute_all_tokens():
    full = FullCalls(first=2, every=3, last=1, ticks=(7,), reach=4)
    assert [tick for tick in range(10) if full.asks(tick, 10, tick - 1, 0)] == [0, 1, 7, 9]
    assert full.asks(4, 10, 3, 2)
    assert full.asks(8, 10, 3, 0)


def test_a_wrong_mask_is_refused_and_rows_without_use_are_told():
    case = CASES["FluxKontextPipeline"]
    sparse = {"config": "uniform", "interval": 4}
    pipe = accelerate(case.build(), rows=quarter(), **sparse)
    case.render(pipe, 0, 13)
    assert {call.computed for call in report(pipe).calls} == {0, 1}
    assert any("rows= saved nothing" in note for note in report(pipe).notes)
    accelerate(pipe, rows=torch.ones(7, 10, 77, dtype=torch.bool), **sparse)
    with pytest.raises(ConfigError, match="mask"):
        case.render(pipe, 0, 13)


@pytest.mark.parametrize(
    ("name", "call", "grid"),
    [
        ("LTXPipeline", {"num_frames": 17}, (3, 8, 8)),
        ("QwenImagePipeline", {}, (1, 4, 4)),
        ("Flux2KleinPipeline", {}, (1, 4, 4)),
        ("FluxPipeline", {"height": 16, "width": 64}, (1, 4, 16)),
    ],
)
def test_a_mask_is_stretched_over_each_frame_of_packed_tokens(name, call, grid):
    left, case = torch.zeros(64, 64, dtype=torch.bool), CASES[name]
    left[:, :32] = True
    pipe = accelerate(case.build(), rows=left, **EVERY_TICK)
    with patch.object(Masked, "__call__", autospec=True, side_effect=Masked.__call__) as source:
        case.render(pipe, 0, 8, **call)
    (_, sight), _ = source.call_args
    assert sight.grid == grid
    places = Masked(left)(sight)[0, sight.moving[0]].view(grid)
    half = grid[-1] // 2
    assert places[..., :half].all()
    assert not places[..., half:].any()


def test_positions_that_are_no_grid_tell_none():
    call = Call.of(
        Positioned(),
        (torch.zeros(1, 6, 4), torch.tensor([[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [2, 2]])),
        {},
    )
    assert grid_told(call, torch.ones(6, dtype=torch.bool)) is None
    call = Call.of(
        Positioned(),
        (torch.zeros(1, 6, 4), torch.tensor([[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]])),
        {},
    )
    assert grid_told(call, torch.ones(6, dtype=torch.bool)) == (1, 2, 3)


class Positioned(torch.nn.Module):
    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return x


def test_an_empty_mask_computes_next_to_nothing():
    case = CASES["FluxInpaintPipeline"]
    pipe = accelerate(case.build(), rows="mask", **EVERY_TICK)
    case.render(pipe, 0, 8, strength=1.0, mask_image=torch.zeros(1, 1, 16, 16))
    assert "%" in report(pipe).summary()


@pytest.mark.parametrize(("height", "width"), [(32, 64), (64, 16)])
def test_the_region_of_an_edit_of_any_shape(height, width):
    case = CASES["FluxKontextPipeline"]
    pipe = accelerate(case.build(), "regione")
    case.render(pipe, 0, 28, image=picture(1, 3, height, width), max_area=height * width)
    assert report(pipe).compute_fraction < 1


class Sized(torch.nn.Module):
    def forward(self, x: torch.Tensor, num_frames: int, height: int, width: int) -> torch.Tensor:
        return x


def test_frames_that_are_given_are_no_part_of_the_grid():
    call = Call.of(Sized(), (torch.zeros(1, 24, 4), 4, 2, 3), {})
    own = torch.ones(24, dtype=torch.bool)
    assert grid_told(call, own) == (4, 2, 3)
    own[:6] = False  # the first frame
    assert grid_told(call, own) == (3, 2, 3)
    own[7] = False
    assert grid_told(call, own) is None
