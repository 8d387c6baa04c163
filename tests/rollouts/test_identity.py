"""A rollout computes block-causal attention, and refuses denoisers that don't."""

import pytest
import torch
from diffusers import WanTransformer3DModel
from support.long_video import TOKENS, chunks, condition, in_one_forward, rolled, rolled_out, tiny_wan
from torch import Tensor, nn

from diffcache import TargetError, rollout
from diffcache.evals.training.causal_wan import MaskedAttention
from diffcache.hooks.attention_calls import AttentionCalls
from diffcache.rollouts.history import LayerHistory

UNBOUNDED = [
    ("everything", {}),
    ("rolling", {"window": 99}),
    ("sink", {"window": 99}),
    ("sink", {"window": 99, "rephase": False}),
    ("deep-sink", {"window": 99}),
    ("participative", {"window": 99}),
    ("participative", {"window": 99, "score": "mass"}),
]


def block_causal(frames: int, tokens: int) -> Tensor:
    """Which tokens of a video see which, bool: a frame of so many tokens sees no later frame."""
    frame = torch.arange(frames).repeat_interleave(tokens)
    return frame[:, None] >= frame[None, :]


@pytest.mark.parametrize(("policy", "options"), UNBOUNDED)
@pytest.mark.parametrize("size", [1, 3])
def test_chunk_after_chunk_is_block_causal_attention_to_the_bit(policy, options, size):
    net, parts = tiny_wan(), chunks(9, size)
    with torch.no_grad(), rollout(net, policy, **options) as video:
        outputs = torch.cat(rolled(net, video, parts, **condition()), 2)
        assert video.learned.form.error == 0.0
        assert torch.equal(outputs, in_one_forward(net, video.learned, parts))


def test_block_causal_attention_is_what_a_mask_gives():
    net, parts = tiny_wan(), chunks(6, 1)
    call = condition()
    call["encoder_hidden_states"] = call["encoder_hidden_states"][:, :3]  # the mask is told by its length
    with torch.no_grad(), rollout(net, "everything") as video:
        outputs = torch.cat(rolled(net, video, parts, **call), 2)
    with torch.no_grad(), AttentionCalls(MaskedAttention(block_causal(6, TOKENS))):
        masked = net(torch.cat(list(parts), 2), **call)[0]
    assert float((outputs - masked).abs().max()) < 1e-5


def test_the_past_matters(monkeypatch):
    net, parts = tiny_wan(), chunks(6, 2)
    kept = rolled_out(net, parts)
    monkeypatch.setattr(LayerHistory, "write", lambda *_: None)
    assert float((rolled_out(net, parts) - kept)[:, :, 2:].abs().max()) > 1e-3


def test_chunks_may_differ_in_length():
    net = tiny_wan()
    frames = torch.cat(list(chunks(8, 2)), 2)
    parts = frames.split([3, 1, 2, 2], 2)
    with torch.no_grad(), rollout(net, "everything") as video:
        outputs = torch.cat(rolled(net, video, parts, **condition()), 2)
        assert torch.equal(outputs, in_one_forward(net, video.learned, parts))


def test_times_of_single_tokens_are_halved_and_doubled_in_the_probe():
    net, parts = tiny_wan(), chunks(4, 2)
    call = condition() | {"timestep": torch.rand(2, 2 * TOKENS) * 1000}
    with torch.no_grad(), rollout(net, "everything") as video:
        rolled(net, video, parts, **call)
        assert video.learned.form.error == 0.0


class Mixing(WanTransformer3DModel):
    """Its frames meet outside attention too."""

    def forward(self, hidden_states, *args, **kwargs):
        return super().forward(hidden_states + hidden_states.mean(2, keepdim=True), *args, **kwargs)


def test_frames_that_meet_outside_attention_are_refused():
    net = tiny_wan()
    net.__class__ = Mixing
    with pytest.raises(TargetError, match="something else than with block-causal attention"):
        rolled_out(net, chunks(2, 1))


class Squared(nn.Module):
    """Places frame i where another denoiser has frame i * i: no turn is the same for all frames."""

    def __init__(self, rope):
        super().__init__()
        self.rope = rope

    def forward(self, latents):
        frames, shape = latents.shape[2], [*latents.shape]
        shape[2] = (frames - 1) ** 2 + 1
        rows = self.rope.forward(latents[:, :, :1].expand(shape))
        which = torch.arange(frames) ** 2
        return tuple(part.unflatten(1, (shape[2], -1))[:, which].flatten(1, 2) for part in rows)


@pytest.mark.parametrize("size", [1, 2])
def test_keys_that_do_not_turn_as_the_rows_say_are_refused(size):
    net = tiny_wan()
    net.rope = Squared(net.rope)
    with pytest.raises(TargetError, match="do not turn as its rotary rows say"):
        rolled_out(net, chunks(2 * size, size))


def test_other_shapes_and_networks_are_refused():
    with pytest.raises(TargetError, match="latents are not"), rollout(nn.Linear(4, 4)) as video:
        video(torch.randn(2, 4))
    net = tiny_wan()
    net.compile()
    with pytest.raises(TargetError, match="compiled"):
        rolled_out(net, chunks(2, 1))


def test_a_refused_denoiser_is_left_as_it_was():
    net = tiny_wan()
    plain = net(chunks(2, 2)[0], **condition())[0]
    with pytest.raises(TargetError):
        rolled_out(net, [torch.randn(2, 4, 4)])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
    assert torch.equal(net(chunks(2, 2)[0], **condition())[0], plain)
