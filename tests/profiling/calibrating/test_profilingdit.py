"""Which blocks draw the foreground: the probe, the masks, and the schedule that is made of them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from support.harness import reference
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from zoo.pipelines import CASES

from diffcache import Schedule, accelerate, report
from diffcache.host.weight_formats import quantization_of
from diffcache.profiling.calibrating.attention import attention_received, keys_of_picture
from diffcache.profiling.calibrating.foreground import on_tokens, otsu, saliency
from diffcache.profiling.calibrating.profilingdit import calibrate, foreground_scores
from diffcache.recipes.profilingdit import SHRINKING, ProfilingDiTConfig, shrinking
from diffcache.schedulers.errors import ConfigError, TargetError

FLUX = CASES["FluxPipeline"]
STEPS = 8


def test_attention_received_is_the_mean_weight_of_each_key() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 4, 5, 8, generator=generator), torch.randn(2, 2, 7, 8, generator=generator)
    identity = torch.eye(7).expand(2, 4, 7, 7)
    weights = scaled_dot_product_attention(query, key.repeat_interleave(2, 1), identity)
    torch.testing.assert_close(attention_received(query, key), weights.mean((1, 2)))


class TextAndPicture(nn.Module):
    """One joint attention, with the text on either side, and a cross-attention."""

    def __init__(self, text_first: bool) -> None:
        super().__init__()
        self.text_first = text_first

    def forward(self, hidden_states: Tensor, timestep: Tensor, encoder_hidden_states: Tensor) -> Tensor:
        parts = [encoder_hidden_states, hidden_states]
        x = torch.cat(parts if self.text_first else parts[::-1], 1).unsqueeze(1)
        scaled_dot_product_attention(x, x, x)
        text = encoder_hidden_states.unsqueeze(1)
        return scaled_dot_product_attention(hidden_states.unsqueeze(1), text, text).squeeze(1)


@pytest.mark.parametrize("text_first", [True, False])
def test_the_pictures_keys_are_found_beside_the_text(text_first: bool) -> None:
    kwargs = {
        "hidden_states": torch.randn(2, 6, 4),
        "timestep": torch.tensor(5),
        "encoder_hidden_states": torch.randn(2, 3, 4),
    }
    found = keys_of_picture(TextAndPicture(text_first), (), kwargs)
    text, picture = [False] * 3, [True] * 6
    assert {keys: mask.tolist() for keys, mask in found.items()} == {
        9: text + picture if text_first else picture + text
    }


def test_the_salient_part_of_a_latent_is_what_differs_from_the_usual() -> None:
    latent = torch.zeros(1, 3, 8, 8)
    latent[:, 1, 2:4, 4:8] = 2.0
    field = saliency(latent)
    assert field.shape == (1, 8, 8)
    foreground = otsu(on_tokens(field, 16))
    assert foreground.reshape(4, 4).nonzero().tolist() == [[1, 2], [1, 3]]
    packed = latent.flatten(2).mT
    assert torch.equal(saliency(packed).reshape(1, 8, 8), field)


def test_a_mask_is_laid_over_the_tokens_of_pictures_and_videos() -> None:
    assert on_tokens(torch.ones(2, 32, 64), 8).shape == (2, 8)
    assert on_tokens(torch.ones(2, 9, 32, 32), 5 * 16).shape == (2, 80)
    with pytest.raises(ConfigError, match="cannot be laid over 7 tokens"):
        on_tokens(torch.ones(2, 32, 32), 7)


def test_intervals_shrink_over_the_run() -> None:
    ticks = shrinking(6, 50, 12, 2)
    gaps = [b - a for a, b in pairwise(ticks)]
    assert ticks[:2] == [6, 18] == list(SHRINKING[:2])
    assert gaps == sorted(gaps, reverse=True)
    assert abs(len(ticks) - len(SHRINKING)) <= 1
    assert shrinking(2, 8, 2, 2) == [2, 4, 6]
    with pytest.raises(ConfigError, match="shrink_to must be at most interval"):
        ProfilingDiTConfig(interval=3, shrink_to=4)


def test_the_blocks_that_look_at_the_mask_are_not_cached(tmp_path: Path) -> None:
    pipe = FLUX.build()
    calls = [FLUX.call(seed, STEPS) for seed in range(2)]
    scores = foreground_scores(pipe, calls)
    assert len(scores) == 6
    assert all(0 <= score <= 1 for score in scores.values())
    schedule = calibrate(pipe, calls, background=0.5, interval=4)
    assert torch.equal(FLUX.render(pipe, 0, STEPS), reference("FluxPipeline", 0, STEPS))
    cached = {unit for site in schedule.table for unit in expand(site.removeprefix("transformer."))}
    assert cached == set(sorted(scores, key=lambda block: scores[block])[:3])
    accelerate(pipe, str(schedule.save_pretrained(tmp_path)))
    FLUX.render(pipe, 0, STEPS)
    assert (
        report(pipe).compute_fraction == Schedule.from_pretrained(tmp_path).measured["compute_fraction"] < 1
    )


def expand(place: str) -> list[str]:
    """The blocks that a place spans."""
    first, _, last = place.partition("..")
    name, begin = first.rsplit(".", 1)
    end = (last or first).rsplit(".", 1)[1]
    return [f"{name}.{i}" for i in range(int(begin), int(end) + 1)]


def test_masks_of_the_users_take_the_place_of_saliency() -> None:
    pipe, calls = FLUX.build(), [FLUX.call(0, STEPS)]
    seen = []

    def segmenter(pictures: Tensor) -> Tensor:
        seen.append(pictures.shape)
        masks = torch.zeros(len(pictures), *pictures.shape[-2:])
        masks[..., : masks.shape[-1] // 2] = 1
        return masks

    left = foreground_scores(pipe, calls, segmenter)
    assert len(seen) == 1
    height, width = seen[0][-2:]
    right = torch.zeros(1, height, width)
    right[..., width // 2 :] = 1
    assert foreground_scores(pipe, calls, [right]) != left


def test_a_quantised_pipeline_stays_quantised() -> None:
    pipe = FLUX.build()
    accelerate(pipe, "uniform", interval=1, quantize="int8-weight-only", keep_original=True)
    kind = quantization_of(pipe.transformer)
    calibrate(pipe, [FLUX.call(0, STEPS)])
    assert quantization_of(pipe.transformer) == kind is not None


def test_several_denoisers_are_refused() -> None:
    case = CASES["WanPipeline-two-experts"]
    with pytest.raises(TargetError, match="this one has several: name the blocks yourself"):
        foreground_scores(case.build(), [case.call(0, STEPS)])


def test_the_probe_lets_go_when_a_run_breaks() -> None:
    pipe = FLUX.build()

    def broken(*_: Any) -> Any:
        raise KeyError("stop")

    call = {**FLUX.call(0, STEPS), "callback_on_step_end": broken}
    with pytest.raises(KeyError):
        foreground_scores(pipe, [call])
    assert torch.equal(FLUX.render(pipe, 0, STEPS), reference("FluxPipeline", 0, STEPS))
