"""Keys are turned as the denoiser itself would have placed them."""

import pytest
import torch
from support.long_video import chunks, condition, tiny_wan
from torch import nn

from diffcache import TargetError
from diffcache.rollouts.attending import Writing, attended, placed
from diffcache.rollouts.learning import learn
from diffcache.rollouts.rotary import HALVES, Rotary


def keys_at(net, learned, start):
    """The first attention's keys of a chunk that stands at a place."""
    writing = Writing(learned.sites, lambda *_: None)
    part = chunks(2, 2)[0]
    with torch.no_grad(), placed(learned.rotary, start, 2), attended(learned.modules, writing.attend):
        net(part, **condition())
    return writing.written[0].key


@pytest.mark.parametrize(("first", "then"), [(0, 1), (0, 29), (29, 0), (7, 3), (3, 30)])
def test_turned_keys_are_those_of_the_other_place(first, then):
    net = tiny_wan()
    learned = learn(net, (chunks(2, 2)[0],), condition())
    there = keys_at(net, learned, then)
    by = torch.full((1, 1, there.shape[2]), then - first)
    turned = learned.rotary.turned(keys_at(net, learned, first), by)
    assert float((turned - there).abs().max() / there.abs().max()) < 1e-6


def test_beyond_the_rows_turns_are_products_of_turns():
    short, long = tiny_wan(rows=8), tiny_wan(rows=1024)
    latent = chunks(1, 1)[0]
    few, many = Rotary(short.rope, latent), Rotary(long.rope, latent)
    for by in (7, 8, 100, -63, 900):
        assert float((few.turn(by) - many.turn(by)).abs().max()) < 1e-6 * max(1, abs(by) / 7)


def test_a_place_beyond_the_rows_is_refused():
    with pytest.raises(TargetError, match="fewer than 9 frames"):
        Rotary(tiny_wan(rows=8).rope, chunks(1, 1)[0]).rows(7, 2)


def test_each_token_of_each_head_turns_by_itself():
    rotary = Rotary(tiny_wan().rope, chunks(1, 1)[0])
    keys = torch.randn(2, 3, 5, 12)
    by = torch.randint(-9, 9, (2, 3, 5))
    turned = rotary.turned(keys, by)
    for b, h, t in ((0, 0, 0), (1, 2, 4), (0, 1, 3)):
        alone = rotary.turned(keys[b : b + 1, h : h + 1, t : t + 1], by[b : b + 1, h : h + 1, t : t + 1])
        assert torch.equal(turned[b, h, t], alone[0, 0, 0])


class Halved(nn.Module):
    """Rows [tokens, channels] that turn channel i with channel i + half."""

    def forward(self, latents):
        frames, tokens = latents.shape[2], latents.shape[3] * latents.shape[4]
        angles = torch.arange(frames).repeat_interleave(tokens)[:, None] * torch.tensor([1.0, 0.3, 0.0])
        return angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)


def test_channels_half_apart_are_turned_together():
    rotary = Rotary(Halved(), torch.zeros(1, 4, 1, 2, 2))
    assert rotary.pairing == HALVES
    turned = rotary.turned(torch.tensor([[[[1.0, 1, 1, 0, 0, 0]]]]), torch.tensor([[[2]]]))[0, 0, 0]
    angles = 2 * torch.tensor([1.0, 0.3, 0.0])
    assert torch.allclose(turned, torch.cat((angles.cos(), angles.sin())), atol=1e-6)


class Still(nn.Module):
    def forward(self, latents):
        return torch.ones(3, 4), torch.ones(3, 4)


def test_rows_that_do_not_grow_are_refused():
    with pytest.raises(TargetError, match="do not grow"):
        Rotary(Still(), torch.zeros(1, 4, 1, 2, 2))
