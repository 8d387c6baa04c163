"""What a rollout holds, how it ends, and what may happen in between."""

import gc
import weakref
from dataclasses import dataclass
from threading import Thread
from typing import ClassVar

import pytest
import torch
from support.long_video import TOKENS, chunks, condition, rolled, rolled_out, tiny_wan
from torch import Tensor

from diffcache import ConfigError, RolloutMemory, TargetError, accelerate, denoising_run, report, rollout
from diffcache.rollouts.history import LayerHistory, TokenBlocks, TokenShape
from diffcache.rollouts.policies import DeepSink, Rolling
from diffcache.rollouts.rotary import Rotary
from diffcache.rollouts.video import Rollout
from diffcache.schedulers.errors import DiffcacheError, ScheduleError
from diffcache.store.formats import format_of
from diffcache.store.placement import HostMemory

BOUNDED = [
    ("rolling", {"window": 6}),
    ("sink", {"window": 6, "sink": 2}),
    ("sink", {"window": 6, "sink": 2, "rephase": False}),
    ("deep-sink", {"window": 6, "sink": 3}),
    ("participative", {"window": 7, "sink": 2, "budget": 5, "recent": 1}),
    ("participative", {"window": 7, "sink": 2, "budget": 5, "recent": 2, "score": "mass"}),
]
FORMATS = [{}, {"cache_dtype": "bfloat16"}, {"cache_dtype": "int8"}, {"cache_device": "cpu"}]


@pytest.mark.parametrize(("policy", "options"), BOUNDED)
def test_bytes_do_not_grow_with_the_video_and_are_what_was_declared(policy, options):
    net, sizes = tiny_wan(), []
    with torch.no_grad(), rollout(net, policy, **options) as video:
        for part in chunks(30, 1):
            video(part, **condition())
            video.write(part, **condition())
            sizes.append(video.cache_bytes)
        assert max(sizes) == video.planned.cache_bytes
        assert max(sizes) == max(sizes[:10])


@pytest.mark.parametrize(("policy", "options"), BOUNDED)
@pytest.mark.parametrize("stored", FORMATS, ids=str)
def test_in_every_format_a_video_is_near_that_without_rounding(policy, options, stored):
    net, parts = tiny_wan(), chunks(12, 1)
    plain, other = (
        rolled_out(net, parts, policy, **options),
        rolled_out(net, parts, policy, **options, **stored),
    )
    if "cache_dtype" not in stored:
        assert torch.equal(plain, other)
    elif policy != "participative":  # it may choose other tokens where keys are rounded
        assert 0 < float((plain - other).abs().max()) < 0.02 * float(plain.abs().max())


@pytest.mark.parametrize("dtype", [None, "bfloat16", "int8", "float8"])
@pytest.mark.parametrize("memory", [None, HostMemory()], ids=["device", "host"])
def test_tokens_are_dropped_without_rounding_the_others_again(dtype, memory):
    shape = TokenShape(2, 3, 16, 16, torch.float32, torch.device("cpu"))
    rows = TokenBlocks(format_of(dtype, memory), (16,))
    for length in (4, 6, 5):
        rows.write((torch.randn(2, 3, length, 16),))
    whole = rows.read(shape)[0]
    own = torch.stack([torch.randperm(6)[:3].sort().values + 4 for _ in range(6)]).view(2, 3, 3)
    index = torch.cat((torch.arange(4).expand(2, 3, -1), own, torch.arange(10, 15).expand(2, 3, -1)), -1)
    untouched = rows.blocks[0], rows.blocks[2]
    rows.choose(index, shape)
    assert torch.equal(rows.read(shape)[0], whole.gather(2, index[..., None].expand(-1, -1, -1, 16)))
    assert rows.lengths == [4, 3, 5]
    assert (rows.blocks[0], rows.blocks[2]) == untouched


def test_a_sink_is_written_once():
    net = tiny_wan()
    with torch.no_grad(), rollout(net, "sink", window=5, sink=2) as video:
        parts = chunks(20, 1)
        rolled(net, video, parts[:2], **condition())
        first = video.layers[0].rows.blocks[0]
        rolled(net, video, parts[2:], **condition())
        assert video.layers[0].rows.blocks[0] is first


def test_sinks_are_turned_only_if_they_are_to_be():
    net, parts = tiny_wan(), chunks(12, 1)
    options = {"window": 5, "sink": 2}
    assert not torch.equal(
        rolled_out(net, parts, "sink", **options), rolled_out(net, parts, "sink", rephase=False, **options)
    )


def test_rolling_is_the_same_wherever_the_window_stands():
    """Only distances matter: places from 0 on give what places in the whole video give."""
    net, parts = tiny_wan(), chunks(12, 1)
    bounded = rolled_out(net, parts, "rolling", window=4)

    class Late(type(net.rope)):
        def forward(self, latents):
            frames = latents.shape[2]
            longer = latents.new_empty(1).expand(*latents.shape[:2], frames + 9, *latents.shape[3:])
            return tuple(part[:, 9 * TOKENS :] for part in super().forward(longer))

    net.rope.__class__ = Late
    assert float((rolled_out(net, parts, "rolling", window=4) - bounded).abs().max()) < 1e-5


class Held:
    """Weak references to everything that rollouts store."""

    def __init__(self, monkeypatch):
        self.refs = []
        write = LayerHistory.write

        def noted(layer, key, value, book):
            write(layer, key, value, book)
            self.refs += [
                weakref.ref(kept) for kept in layer.rows.blocks[-1].tensors if isinstance(kept, Tensor)
            ]

        monkeypatch.setattr(LayerHistory, "write", noted)

    @property
    def alive(self):
        gc.collect()
        return sum(ref() is not None for ref in self.refs)


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_left_however_it_ends(monkeypatch, fails):
    held, net = Held(monkeypatch), tiny_wan()
    raised = []
    try:
        with torch.no_grad(), rollout(net, "rolling", window=4) as video:
            rolled(net, video, chunks(6, 1), **condition())
            assert held.alive == 3 * 2 * 4
            if fails:
                video(chunks(1, 1)[0], **condition() | {"encoder_hidden_states": torch.zeros(2, 3, 5)})
    except RuntimeError as error:
        raised.append(error)  # which keeps its frames alive
    assert len(raised) == fails
    assert held.alive == 0
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
    with pytest.raises(DiffcacheError, match="this rollout is over"):
        video(chunks(1, 1)[0], **condition())


@pytest.mark.parametrize(("policy", "options"), BOUNDED)
def test_a_chunk_that_was_not_written_can_be_begun_again(policy, options):
    net, parts = tiny_wan(), chunks(12, 1)
    plain = rolled_out(net, parts, policy, **options)
    outputs = []
    with torch.no_grad(), rollout(net, policy, **options) as video:
        for i, part in enumerate(parts):
            if i in (3, 8, 9):
                with pytest.raises((RuntimeError, AttributeError)):
                    video.write(part, **condition() | {"encoder_hidden_states": torch.zeros(2, 3, 5)})
            outputs += rolled(net, video, [part], **condition())
    assert torch.equal(torch.cat(outputs, 2), plain)


@pytest.mark.parametrize(("policy", "options"), BOUNDED)
@pytest.mark.parametrize("stored", [{}, {"cache_dtype": "int8"}, {"cache_device": "cpu"}], ids=str)
def test_a_saved_video_goes_on_as_if_nothing_had_happened(policy, options, stored, tmp_path):
    net, parts = tiny_wan(), chunks(12, 1)
    plain = rolled_out(net, parts, policy, **options, **stored)
    with torch.no_grad(), rollout(net, policy, **options, **stored) as video:
        outputs = rolled(net, video, parts[:7], **condition())
        video.save(tmp_path)
    with torch.no_grad(), rollout(net, policy, **options, **stored) as video:
        video.load(tmp_path)
        assert video.frames == 7
        with pytest.raises(DiffcacheError, match="make a chunk before saving"):
            video.save(tmp_path)
        outputs += rolled(net, video, parts[7:], **condition())
        assert video.frames == 12
    assert torch.equal(torch.cat(outputs, 2), plain)


@dataclass(frozen=True)
class Odd(Rolling):
    """A policy of a user's own, with an option that JSON knows otherwise."""

    name: ClassVar[str] = "odd"
    kept_in: tuple[int, ...] = (0, 1)


def test_a_policy_of_ones_own_is_known_again(tmp_path):
    net, parts = tiny_wan(), chunks(6, 1)
    with torch.no_grad(), rollout(net, Odd(window=4)) as video:
        outputs = rolled(net, video, parts[:5], **condition())
        video.save(tmp_path)
    with torch.no_grad(), rollout(net, Odd(window=4)) as video:
        video.load(tmp_path)
        outputs += rolled(net, video, parts[5:], **condition())
    assert torch.equal(torch.cat(outputs, 2), rolled_out(net, parts, "rolling", window=4))
    with (
        rollout(net, Odd(window=4, kept_in=(0,))) as video,
        pytest.raises(ScheduleError, match="same policy"),
    ):
        video.load(tmp_path)


def test_what_was_saved_is_checked(tmp_path):
    net, parts = tiny_wan(), chunks(4, 1)
    with torch.no_grad(), rollout(net, "rolling", window=4) as video:
        rolled(net, video, parts, **condition())
        video.save(tmp_path / "good")
    with (
        torch.no_grad(),
        rollout(net, "rolling", window=5) as video,
        pytest.raises(ScheduleError, match="use the same policy"),
    ):
        video.load(tmp_path / "good")
    for options, batch in (({"cache_dtype": "int8"}, 2), ({}, 1)):
        with torch.no_grad(), rollout(net, "rolling", window=4, **options) as video:
            video.load(tmp_path / "good")
            with pytest.raises(ScheduleError, match="use the same denoiser"):
                video(chunks(1, 1, batch)[0], **condition(batch))
    with torch.no_grad(), rollout(net, "rolling", window=4) as video:
        video.load(tmp_path / "good")
        wider = torch.nn.functional.pad(chunks(1, 1)[0], (0, 4))
        with pytest.raises(ScheduleError, match=r"has sizes \[2, 4, 4\], and this one \[2, 4, 8\]"):
            video(wider, **condition())
    (tmp_path / "bad").mkdir()
    whole = (tmp_path / "good" / "rollout.safetensors").read_bytes()
    (tmp_path / "bad" / "rollout.safetensors").write_bytes(whole[: len(whole) // 2])
    for folder in ("bad", "none"):
        with (
            rollout(net, "rolling", window=4) as video,
            pytest.raises(ScheduleError, match="holds no rollout"),
        ):
            video.load(tmp_path / folder)


def test_a_prompt_may_change_and_what_was_seen_stays():
    net, parts = tiny_wan(), chunks(6, 1)
    with torch.no_grad(), rollout(net, "everything") as video:
        same = rolled(net, video, parts[:3], **condition())
        other = rolled(net, video, parts[3:], **condition(seed=9))
    plain = rolled_out(net, parts).split(1, 2)
    assert all(torch.equal(a, b) for a, b in zip(same, plain[:3], strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(other, plain[3:], strict=True))


@pytest.mark.parametrize(("policy", "options"), BOUNDED)
def test_a_sample_does_not_depend_on_the_others_of_its_batch(policy, options):
    net, parts = tiny_wan(), chunks(12, 1)
    both = rolled_out(net, parts, policy, **options)
    call = {name: value[:1] if isinstance(value, Tensor) else value for name, value in condition().items()}
    with torch.no_grad(), rollout(net, policy, **options) as video:
        alone = torch.cat(rolled(net, video, [part[:1] for part in parts], **call), 2)
    assert float((alone - both[:1]).abs().max()) < 1e-5


def test_a_deep_sink_of_half_the_window_is_kept_where_nothing_is_named():
    net, parts = tiny_wan(), chunks(8, 1)
    with torch.no_grad(), rollout(net, window=5) as video:
        default = torch.cat(rolled(net, video, parts, **condition()), 2)
    assert torch.equal(default, rolled_out(net, parts, "sink", window=5, sink=2))
    assert DeepSink().sink == 10


def test_another_size_or_batch_needs_another_rollout():
    net = tiny_wan()
    with torch.no_grad(), rollout(net) as video:
        video.write(chunks(1, 1)[0], **condition())
        with pytest.raises(ConfigError, match="begin another rollout"):
            video(chunks(1, 1, batch=1)[0], **condition(1))


def test_a_longer_chunk_instead_of_one_that_was_begun_keeps_to_the_window():
    net, parts = tiny_wan(), chunks(12, 1)
    with torch.no_grad(), rollout(net, "rolling", window=6) as video:
        rolled(net, video, parts[:8], **condition())
        video(parts[8], **condition())
        longer = torch.cat(list(parts[8:11]), 2)
        outputs = rolled(net, video, [longer], **condition())
        assert video.layers[0].book.tokens == 6 * TOKENS
    with torch.no_grad(), rollout(net, "rolling", window=6) as video:
        rolled(net, video, parts[:8], **condition())
        assert torch.equal(rolled(net, video, [longer], **condition())[0], outputs[0])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"memory": 3}, "memory=3: give a RolloutMemory, or max_cache_bytes="),
        ({"memory": RolloutMemory(), "max_cache_bytes": 10}, "memory= has a bound of its own"),
        ({"policy": 3}, "there is no rollout policy 3: choose one of"),
        ({"policy": ["sink"]}, r"there is no rollout policy \['sink'\]"),
    ],
    ids=["no memory", "two bounds", "no policy", "several policies"],
)
def test_what_is_no_memory_or_policy_is_refused_before_the_first_chunk(options, sentence):
    with pytest.raises(ConfigError, match=sentence), rollout(tiny_wan(), **options):
        pass


def test_a_call_without_a_chunk_is_refused_and_the_rollout_goes_on():
    net, parts = tiny_wan(), chunks(2, 1)
    with torch.no_grad(), rollout(net) as video:
        for part in parts:
            for call in (video, video.write):
                with pytest.raises(ConfigError, match="this one has no latents: pass a chunk's"):
                    call()
            video.write(part, **condition())
        assert video.frames == 2


def test_a_pipeline_is_no_denoiser():
    with pytest.raises(TargetError, match="is no denoiser"), rollout(object()):
        pass


def test_fewer_bits_then_host_memory_where_there_is_no_room():
    net, part = tiny_wan(), chunks(1, 1)[0]
    with rollout(net, window=21) as video:
        whole = video.plan(part, **condition()).cache_bytes
    chosen = {}
    for share in (1.0, 0.5, 0.4, 0.3):
        with rollout(net, window=21, max_cache_bytes=int(whole * share)) as video:
            plan = video.plan(part, **condition())
            chosen[share] = plan.cache_dtype, plan.on_host
            assert plan.device_bytes <= whole * share
    assert chosen[1.0] == (None, False)
    assert chosen[0.5] == ("bfloat16", False)
    assert chosen[0.4] == ("int8", False)  # 12 channels and a scale: 16 of 48 bytes
    assert chosen[0.3] == ("int8", True)  # two of three layers at once
    with (
        rollout(net, window=21, max_cache_bytes=whole // 100) as video,
        pytest.raises(ConfigError, match="cannot do with less"),
    ):
        video.plan(part, **condition())
    with (
        rollout(net, "everything", max_cache_bytes=whole) as video,
        pytest.raises(ConfigError, match="needs a policy with a window"),
    ):
        video.plan(part, **condition())


@pytest.mark.parametrize("bound", [0, 1.5, True, "1GB"])
def test_a_bound_is_a_number_of_bytes(bound):
    with (
        pytest.raises(ConfigError, match="whole number of bytes"),
        rollout(tiny_wan(), window=21, max_cache_bytes=bound),
    ):
        pass


def test_several_rollouts_of_one_denoiser_take_turns_and_share_their_bytes():
    net = tiny_wan()
    videos = [chunks(8, 1, seed=seed) for seed in range(3)]
    plain = [rolled_out(net, parts, "rolling", window=4) for parts in videos]
    with torch.no_grad(), rollout(net, "rolling", window=4) as video:
        one = video.plan(videos[0][0], **condition()).cache_bytes
    memory = RolloutMemory(2 * one)
    with (
        torch.no_grad(),
        rollout(net, "rolling", window=4, memory=memory) as a,
        rollout(net, "rolling", window=4, memory=memory) as b,
    ):
        outputs = [[], []]
        for i in range(8):
            for video, parts, output in zip((a, b), videos, outputs, strict=False):
                output += rolled(net, video, [parts[i]], **condition())
        assert memory.declared == 2 * one
        with (
            rollout(net, "rolling", window=4, memory=memory) as third,
            pytest.raises(ConfigError, match="has 0 bytes left"),
        ):
            third(videos[2][0], **condition())
    assert memory.declared == 0
    for output, wanted in zip(outputs, plain, strict=False):
        assert torch.equal(torch.cat(output, 2), wanted)


def test_two_threads_roll_out_one_denoiser():
    net = tiny_wan()
    videos = [chunks(8, 1, seed=seed) for seed in range(2)]
    plain = [rolled_out(net, parts, "sink", window=4, sink=1) for parts in videos]
    found = {}

    def work(i):
        found[i] = rolled_out(net, videos[i], "sink", window=4, sink=1)

    threads = [Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(found[i], plain[i]) for i in range(2))


def denoised(net, video, parts, steps=6):
    """Each chunk denoised in a run of its own, and written."""
    finished, computed = [], []
    call = condition()
    for latents in parts:
        with denoising_run(net, steps, sigmas=[1 - i / steps for i in range(steps)]) as run:
            for i in range(steps):
                run.begin_step(i)
                time = torch.full((2,), 1000 * (1 - i / steps))
                latents = latents - video(latents, **call | {"timestep": time})[0] / steps
        video.write(latents, **call | {"timestep": torch.zeros(2)})
        finished.append(latents)
        computed.append(report(net).compute_fraction if hasattr(type(net), "_diffcache_base") else 1.0)
    return torch.cat(finished, 2), computed


@pytest.mark.parametrize("site", ["model", "block", "attention"])
def test_methods_work_inside_each_chunk(site):
    parts = chunks(6, 1)
    options = {"policy": "participative", "window": 5, "sink": 1, "budget": 3, "recent": 1}
    net = tiny_wan()
    with torch.no_grad(), rollout(net, **options) as video:
        plain, _ = denoised(net, video, parts)
    accelerate(net, "uniform", interval=1, site=site)
    with torch.no_grad(), rollout(net, **options) as video:
        same, _ = denoised(net, video, parts)
    accelerate(net, "uniform", interval=2, warmup_steps=1, tail_steps=1, site=site)
    with torch.no_grad(), rollout(net, **options) as video:
        faster, computed = denoised(net, video, parts)
    assert torch.equal(same, plain)
    assert not torch.equal(faster, plain)
    assert float((faster - plain).abs().max()) < 0.5 * float(plain.abs().max())
    assert all(share < 0.8 for share in computed)
    assert len(set(computed)) == 1  # each chunk is a run of its own


def test_the_past_is_written_even_where_the_method_would_reuse():
    net = accelerate(tiny_wan(), "uniform", interval=100, tail_steps=0)
    with torch.no_grad(), rollout(net, "everything") as video, denoising_run(net, 3) as run:
        run.begin_step(0)
        video(chunks(1, 1)[0], **condition())
        run.begin_step(1)
        video.write(chunks(1, 1)[0], **condition())
        assert all(layer.book.tokens == TOKENS for layer in video.layers)


def test_gradients_pass_through_a_chunk_and_not_into_the_past():
    net, parts = tiny_wan(), chunks(2, 1)
    with rollout(net, "everything") as video:
        first = parts[0].clone().requires_grad_()
        video.write(first, **condition())
        second = parts[1].clone().requires_grad_()
        video(second, **condition())[0].sum().backward()
    assert second.grad is not None
    assert first.grad is None


def test_compiled_denoisers_are_refused_before_anything_is_kept():
    net = tiny_wan()
    with rollout(torch.compile(net)) as video:
        assert video.denoiser is net  # the plain one rolls out
    net.blocks[0].compile()
    with rollout(net) as video, pytest.raises(TargetError, match="compiled"):
        video(chunks(1, 1)[0], **condition())


def test_rows_are_made_once_for_a_place(monkeypatch):
    net, calls = tiny_wan(), []
    turn = Rotary._turn
    monkeypatch.setattr(Rotary, "_turn", lambda self, frame: calls.append(frame) or turn(self, frame))
    rolled_out(net, chunks(30, 1), "sink", window=5, sink=2)
    assert len(calls) < 60


def test_the_next_layers_past_is_fetched_from_host_memory_while_one_is_computed(monkeypatch):
    fetched, ahead = [], []
    to_device, seen = HostMemory._to_device, Rollout._seen

    def copied(memory, feature):
        fetched.append(id(feature))
        return to_device(memory, feature)

    def looked(video, i, *args):
        ahead.append({id(block) for block in video.layers[i].rows.blocks} <= {*fetched})
        return seen(video, i, *args)

    net, parts = tiny_wan(), chunks(8, 1)
    with torch.no_grad(), rollout(net, "rolling", window=4, cache_device="cpu") as video:
        rolled(net, video, parts[:6], **condition())
        video(parts[6], **condition())
        monkeypatch.setattr(HostMemory, "_to_device", copied)
        monkeypatch.setattr(Rollout, "_seen", looked)
        video(parts[6], **condition())
    assert ahead == [False, True, True]
    assert len(fetched) == len({*fetched})  # each block once
