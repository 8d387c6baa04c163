"""The pipeline for causal Wan checkpoints, with a tiny checkpoint of Self-Forcing's form on disk."""

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, WanTransformer3DModel
from safetensors.torch import save_file

from diffcache import ConfigError, ScheduleError, accelerate, report
from diffcache.evals.testbeds import zoo
from diffcache.rollouts.checkpoints import causal_weights
from diffcache.rollouts.pipeline import CausalWanPipeline
from diffcache.rollouts.video import Rollout

ORIGINAL = {
    "condition_embedder.time_embedder.linear_1": "time_embedding.0",
    "condition_embedder.time_embedder.linear_2": "time_embedding.2",
    "condition_embedder.text_embedder.linear_1": "text_embedding.0",
    "condition_embedder.text_embedder.linear_2": "text_embedding.2",
    "condition_embedder.time_proj": "time_projection.1",
    "attn1": "self_attn",
    "attn2": "cross_attn",
    "to_out.0": "o",
    "to_q": "q",
    "to_k": "k",
    "to_v": "v",
    "ffn.net.0.proj": "ffn.0",
    "ffn.net.2": "ffn.2",
    ".norm2.": ".norm3.",
    "proj_out": "head.head",
}
"""Diffusers' names, and those of Wan's own code, which Self-Forcing trains."""
CALL = {"height": 32, "width": 32, "chunk_frames": 1, "max_sequence_length": 20, "output_type": "latent"}


def original_name(name):
    for ours, theirs in ORIGINAL.items():
        name = name.replace(ours, theirs)
    if name == "scale_shift_table":
        return "head.modulation"
    return name.replace("scale_shift_table", "modulation")


def tiny_transformer(seed):
    torch.manual_seed(seed)
    return WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=16,
        out_channels=16,
        text_dim=64,
        freq_dim=16,
        ffn_dim=32,
        num_layers=2,
        rope_max_seq_len=64,
    ).eval()


@pytest.fixture(scope="module")
def parts():
    return zoo.load("wan").components


@pytest.fixture
def pipe(parts):
    scheduler = FlowMatchEulerDiscreteScheduler(shift=5.0, stochastic_sampling=True)
    made = CausalWanPipeline(**parts | {"transformer": tiny_transformer(0), "scheduler": scheduler})
    made.set_progress_bar_config(disable=True)
    return made


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("prefix", ["model.", "model._fsdp_wrapped_module.", ""])
@pytest.mark.parametrize("part", ["generator_ema", "generator", None])
def test_a_checkpoint_of_self_forcing_loads(pipe, tmp_path, prefix, part):
    trained = tiny_transformer(1)
    weights = {prefix + original_name(name): value for name, value in trained.state_dict().items()}
    assert any(".self_attn.q.weight" in name for name in weights)
    torch.save(weights if part is None else {part: weights, "step": 3}, tmp_path / "model.pt")
    pipe.load_causal_weights(tmp_path / "model.pt")
    loaded = pipe.transformer.state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in trained.state_dict().items())


def test_safetensors_with_the_names_of_diffusers_load_too(pipe, tmp_path):
    trained = tiny_transformer(1)
    save_file(trained.state_dict(), tmp_path / "model.safetensors")
    pipe.load_causal_weights(tmp_path / "model.safetensors")
    assert torch.equal(pipe.transformer.proj_out.weight, trained.proj_out.weight)


class Evil:
    def __reduce__(self):
        return print, ("code ran",)


def test_what_is_no_checkpoint_of_this_model_is_refused_and_nothing_is_changed(pipe, tmp_path, capsys):
    before = {name: value.clone() for name, value in pipe.transformer.state_dict().items()}
    torch.save({"generator": Evil()}, tmp_path / "evil.pt")
    torch.save({"generator": {}}, tmp_path / "empty.pt")
    (tmp_path / "text.pt").write_text("no weights")
    weights = {original_name(name): value for name, value in before.items()}
    torch.save(
        {name: value for name, value in weights.items() if "blocks.1" not in name}, tmp_path / "part.pt"
    )
    torch.save({name: value[:1] for name, value in weights.items()}, tmp_path / "shape.pt")
    for name, message in (
        ("evil", "cannot be read"),
        ("empty", "holds no weights"),
        ("text", "cannot be read"),
        ("none", "cannot be read"),
        ("part", "lacks blocks.1"),
        ("shape", "has another shape"),
    ):
        with pytest.raises(ScheduleError, match=message):
            pipe.load_causal_weights(tmp_path / f"{name}.pt")
    assert "code ran" not in capsys.readouterr().out
    assert all(torch.equal(pipe.transformer.state_dict()[name], value) for name, value in before.items())


def test_names_of_wans_own_code_are_told_from_those_of_diffusers(tmp_path):
    torch.save({"blocks.0.self_attn.q.weight": torch.ones(1)}, tmp_path / "a.pt")
    assert [*causal_weights(tmp_path / "a.pt")] == ["blocks.0.attn1.to_q.weight"]


def test_a_video_is_the_same_twice_and_has_the_length_that_was_asked_for(pipe):
    call = CALL | {"num_frames": 15, "policy": "sink", "window": 5, "sink": 2}
    first = pipe("a red ring moving left", generator=seeded(), **call).frames
    assert first.shape == (1, 16, 8, 8, 8)
    assert torch.equal(pipe("a red ring moving left", generator=seeded(), **call).frames, first)
    assert not torch.equal(pipe("a red ring moving left", generator=seeded(1), **call).frames, first)


@pytest.mark.parametrize("frames", [1, 2, 4, 5])
def test_a_video_has_as_many_frames_as_were_asked_for(pipe, frames):
    call = CALL | {"num_frames": frames, "policy": "rolling", "window": 4, "output_type": "pt"}
    assert pipe("a red ring", generator=seeded(), **call).frames.shape == (1, frames, 3, 32, 32)


@pytest.mark.parametrize(
    "option",
    [
        {"num_frames": 0},
        {"num_frames": 9.0},
        {"chunk_frames": 0},
        {"height": 0},
        {"height": 36},
        {"output_type": "gif"},
    ],
    ids=str,
)
def test_what_makes_no_video_is_refused_before_anything_is_computed(pipe, option, monkeypatch):
    monkeypatch.setattr(type(pipe), "encode_prompt", None)
    with pytest.raises(ConfigError, match="{}={!r}".format(*next(iter(option.items())))):
        pipe("a red ring", **CALL | {"policy": "rolling"} | option)


@pytest.mark.parametrize(
    ("prompt", "sentence"),
    [
        (3, "prompt=3: give a text"),
        ([], r"prompt=\[\]: give a text"),
        (["a red ring", 3], "give a text, or a list"),
        ({0: 3}, r"prompt\[0\]=3: give a text"),
        ({0: "a red ring", -4: "a blue star"}, "a prompt of frame -4: give whole numbers"),
        ({0: "a red ring", "4": "a blue star"}, "a prompt of frame '4': give whole numbers"),
        ({0: "a red ring", 100: "a blue star"}, "of frame 100 would never hold: .* the last at frame 8"),
        ({0: "a red ring", 9: "a blue star"}, "of frame 9 would never hold"),
        ({0: "a red ring", 3: "a star", 4: "a blue star"}, "of frame 3 would never hold: .* every 4 frames"),
    ],
    ids=str,
)
def test_prompts_that_are_none_or_never_hold_are_refused(pipe, prompt, sentence, monkeypatch):
    monkeypatch.setattr(type(pipe), "encode_prompt", None)
    with pytest.raises(ConfigError, match=sentence):
        pipe(prompt, num_frames=9, policy="rolling", **CALL | {"chunk_frames": 2})


def test_a_prompt_holds_up_to_the_last_chunks_first_frame(pipe):
    call = CALL | {"num_frames": 9, "policy": "rolling", "window": 4, "chunk_frames": 2}
    one = pipe("a red ring", generator=seeded(), **call).frames
    two = pipe({0: "a red ring", 4: "a blue star"}, generator=seeded(), **call).frames
    assert torch.equal(one[:, :, :2], two[:, :, :2])
    assert not torch.equal(one[:, :, 2:], two[:, :, 2:])


@pytest.mark.parametrize("options", [{}, {"num_frames": 9}], ids=str)
def test_streaming_asks_for_latent_frames(pipe, options):
    with pytest.raises(ConfigError, match=r"pass latent_frames=, for n frames of pixels \(n - 1\) / 2 \+ 1"):
        next(pipe.stream("a red ring", **options))


def test_a_negative_prompt_is_a_text(pipe):
    with pytest.raises(ConfigError, match="negative_prompt=3: give a text"):
        pipe("a red ring", 3, num_frames=9, **CALL)


def test_streaming_gives_the_same_and_may_be_stopped(pipe, monkeypatch):
    closed = []
    close = Rollout.close
    monkeypatch.setattr(Rollout, "close", lambda self: (close(self), closed.append(self.cache_bytes)))
    call = {name: value for name, value in CALL.items() if name != "output_type"} | {
        "policy": "rolling",
        "window": 4,
    }
    whole = pipe("a red ring", num_frames=11, generator=seeded(), output_type="latent", **call).frames
    stream = pipe.stream("a red ring", latent_frames=6, generator=seeded(), **call)
    begun = [next(stream) for _ in range(4)]
    stream.close()
    assert torch.equal(torch.cat(begun, 2), whole[:, :, :4])
    assert closed == [0, 0]


def test_guidance_and_a_batch_and_frames_that_can_be_looked_at(pipe):
    call = CALL | {"num_frames": 9, "policy": "rolling", "window": 4, "output_type": "pt", "timesteps": None}
    prompts = ["a red ring moving left", "a blue star moving up"]
    plain, guided = (
        pipe(prompts, generator=seeded(), num_inference_steps=2, guidance_scale=scale, **call).frames
        for scale in (1.0, 3.0)
    )
    assert plain.shape == guided.shape == (2, 9, 3, 32, 32)
    assert not torch.equal(plain, guided)


def test_a_prompt_holds_from_its_frame_on(pipe):
    call = CALL | {"num_frames": 11, "policy": "rolling", "window": 4}
    one = pipe("a red ring", generator=seeded(), **call).frames
    two = pipe({0: "a red ring", 6: "a blue star"}, generator=seeded(), **call).frames
    assert torch.equal(one[:, :, :3], two[:, :, :3])
    assert not torch.equal(one[:, :, 3:], two[:, :, 3:])
    with pytest.raises(ConfigError, match="no prompt holds at frame 0"):
        pipe({4: "a red ring"}, **call)


def test_an_accelerated_transformer_reuses_in_each_chunk(pipe):
    call = CALL | {
        "num_frames": 9,
        "policy": "rolling",
        "window": 4,
        "timesteps": None,
        "num_inference_steps": 6,
    }
    pipe.scheduler = FlowMatchEulerDiscreteScheduler(shift=2.0)
    plain = pipe("a red ring", generator=seeded(), **call).frames
    accelerate(pipe.transformer, "uniform", interval=2, warmup_steps=1)
    faster = pipe("a red ring", generator=seeded(), **call).frames
    assert report(pipe.transformer).compute_fraction < 0.8
    assert not torch.equal(plain, faster)


def test_a_call_of_an_accelerated_pipeline_has_one_report_of_all_chunks(pipe):
    pipe.scheduler = FlowMatchEulerDiscreteScheduler(shift=2.0)
    accelerate(pipe, "uniform", interval=2, warmup_steps=1, tail_steps=1)
    call = CALL | {"policy": "rolling", "window": 4, "timesteps": None, "num_inference_steps": 6}
    pipe("a red ring", generator=seeded(), num_frames=5, **call)
    told = report(pipe)
    assert told.num_ticks == 3 * 6
    assert [run.computed_ticks for run in told.runs] == [[0, 2, 4, 5]] * 3
    pipe("a red ring", generator=seeded(), num_frames=3, **call)
    assert (len(told.runs), len(report(pipe).runs)) == (3, 2)
