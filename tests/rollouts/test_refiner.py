"""A policy for the cache of SANA-WM's refiner: as many tokens, other ones, and each at its place."""

from dataclasses import dataclass

import pytest
import torch
from support.long_video import tiny_wan
from support.refiner import raw_latents, tiny_refiner

from diffcache import ConfigError, TargetError
from diffcache.rollouts.policies import Participative, Rolling
from diffcache.rollouts.refiner import BUILDER, HistoryLayer, refiner_history

transformers = pytest.importorskip("diffusers.models.transformers.transformer_sana_wm_refiner")
refiners = pytest.importorskip("diffusers.pipelines.sana_wm.refiner")
FRAMES, SIDE, SINK, CONTEXT, BLOCK = 12, 2, 1, 5, 2
POLICY = Participative(sink=SINK, budget=CONTEXT, recent=2)


@dataclass(frozen=True)
class Newest(Participative):
    """Finds the newest tokens the most relevant, as the refiner does."""

    def relevance(self, queries, keys, scale):
        return torch.arange(keys.shape[2]).float().expand(keys.shape[0], 1, -1)


@dataclass(frozen=True)
class Oldest(Participative):
    """Keeps the oldest tokens beside the recent frames."""

    def relevance(self, queries, keys, scale):
        return -torch.arange(keys.shape[2]).float().expand(keys.shape[0], 1, -1)


def refined(pipe, context=CONTEXT, sink=SINK):
    call = {"fps": 16.0, "sink_size": sink, "block_size": BLOCK, "kv_max_frames": context}
    return pipe(raw_latents(FRAMES, SIDE), "a street", output_type="latent", **call)


def caches(monkeypatch):
    """The caches that refiners make from now on."""
    made = []
    kind = refiners.SanaWMRefinerKVCache

    def noted(layers):
        made.append(kind(layers))
        return made[-1]

    monkeypatch.setattr(refiners, "SanaWMRefinerKVCache", noted)
    return made


def test_where_nothing_is_dropped_nothing_changes_to_the_bit():
    pipe = tiny_refiner()
    plain = refined(pipe, 99)
    with refiner_history(pipe.transformer, Participative(window=120, sink=SINK, budget=99)):
        assert torch.equal(refined(pipe, 99), plain)


def test_the_newest_tokens_are_what_the_refiner_itself_keeps():
    pipe = tiny_refiner()
    plain = refined(pipe)
    assert not torch.equal(plain, refined(pipe, 99))
    with refiner_history(pipe.transformer, Newest(sink=SINK, budget=CONTEXT, recent=2)):
        assert torch.equal(refined(pipe), plain)


def test_other_tokens_are_kept_and_as_many(monkeypatch):
    pipe = tiny_refiner()
    plain, made = refined(pipe), caches(monkeypatch)
    with refiner_history(pipe.transformer, POLICY):
        assert not torch.equal(refined(pipe), plain)
    for layer in made[0].layer_caches:
        assert isinstance(layer, HistoryLayer)
        kept = layer.book.frame[0, 0]
        assert len(kept) == layer.parts[0].shape[1] == (CONTEXT - SINK) * SIDE**2
        assert set(range(FRAMES - 2, FRAMES)) <= set(kept.tolist())
        assert min(kept.tolist()) < FRAMES - (CONTEXT - SINK)


@pytest.mark.parametrize("rope", ["interleaved", "split"])
def test_old_keys_stand_where_the_refiner_would_have_placed_them(rope, monkeypatch):
    pipe = tiny_refiner(rope_type=rope)
    made = caches(monkeypatch)
    with refiner_history(pipe.transformer, Oldest(sink=SINK, budget=CONTEXT, recent=2)):
        refined(pipe)
        layer = made[0].layer_caches[0]
        read, _ = layer.get_history()
    kept = layer.book.frame[0, 0].unique().tolist()
    assert kept == [1, 2, FRAMES - 2, FRAMES - 1]
    unplaced = turned_by(pipe, layer.parts[0], kept, -1)
    expected = turned_by(pipe, unplaced, range(FRAMES - 4, FRAMES), 1)
    assert float((read - expected).abs().max() / expected.abs().max()) < 1e-6
    assert float((read - layer.parts[0]).abs().max()) > 0.1


def turned_by(pipe, keys, frames, sign):
    """Keys turned by Diffusers' own function: to the places of frames, or with sign -1 from there."""
    cos, sin = getattr(pipe.transformer, BUILDER)(1, [*frames], SIDE, SIDE, "cpu", 16.0)
    turn = transformers.apply_split_rotary_emb if cos.ndim == 4 else transformers.apply_interleaved_rotary_emb
    return turn(keys, (cos, sign * sin))


def test_a_call_that_does_not_fit_is_refused_and_the_refiner_left_as_it_was():
    pipe = tiny_refiner()
    plain = refined(pipe)
    with (
        pytest.raises(ConfigError, match="sink_size=1 and kv_max_frames=7"),
        refiner_history(pipe.transformer, POLICY),
    ):
        refined(pipe, 7)
    assert not any(
        module._forward_hooks or module._forward_pre_hooks for module in pipe.transformer.modules()
    )
    assert BUILDER not in vars(pipe.transformer)
    assert torch.equal(refined(pipe), plain)


def test_other_networks_and_policies_are_refused_with_the_remedy():
    with pytest.raises(TargetError, match="there is `rollout`"), refiner_history(tiny_wan(), POLICY):
        pass
    with (
        pytest.raises(ConfigError, match="sink_size="),
        refiner_history(tiny_refiner().transformer, Rolling()),
    ):
        pass
