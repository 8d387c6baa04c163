"""No object works only after another of its methods was called: each of these is asked at once, fresh from its constructor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from language.tiny import MASK, greedy, texts, tiny_llama

from diffcache import methods
from diffcache.language.backbones.families import backbone_of
from diffcache.language.cache import TokenKVCache
from diffcache.language.recipes.base import LanguageConfig
from diffcache.language.sampler.canvas import Canvas
from diffcache.language.sampler.decoding import Quota, Threshold
from diffcache.language.sampler.noise import Noise
from diffcache.language.sampler.options import DecodeOptions
from diffcache.language.sampler.writer import Part, Writer
from diffcache.language.session import PlainCaller, Session


def test_a_cache_is_asked_before_it_knows_the_texts_length() -> None:
    cache = TokenKVCache(3, torch.ones(2, 12, dtype=torch.bool), dtype=torch.float32)
    assert cache.mask(slice(0, 0)) is None
    assert cache.nbytes == 0
    cache.resize(5)
    assert cache.attendable.shape == (2, 5)


@torch.inference_mode()
def test_a_writer_writes_a_block_at_once() -> None:
    canvas = Canvas.of_prompts(texts(2, 5), 12, MASK)
    caller = PlainCaller(backbone_of(tiny_llama()), torch.ones_like(canvas.tokens, dtype=torch.bool))
    writer = Writer(caller, canvas, greedy(), Noise.of(0, 2, 5, torch.device("cpu")), torch.tensor([]).long())
    for block in (range(5, 9), range(9, 13)):
        written = list(writer.write(Part(block, Quota(2), 2)))
        assert [int(each.sum()) for each in written] == [4, 4]
        assert torch.stack(written).any(dim=0)[:, block.start : block.stop].all()


@pytest.mark.parametrize("kind", LanguageConfig.methods().values(), ids=LanguageConfig.methods())
@torch.no_grad()
def test_a_walk_is_one_call(kind: Any) -> None:
    canvas = Canvas.of_prompts(texts(2, 9), 6, MASK)
    net = backbone_of(tiny_llama())
    session = Session(net, kind(), torch.ones_like(canvas.tokens, dtype=torch.bool))
    session.cache.resize(canvas.length)
    with session.report.counting_call(canvas.length, 6):
        found, predicted = session.walk(canvas, slice(0, canvas.length), True)
    assert predicted == slice(9, canvas.length)
    torch.testing.assert_close(found, net.call(canvas.tokens, None, None)[:, 9:], atol=1e-4, rtol=0)


def test_a_canvas_has_its_window_from_the_beginning() -> None:
    assert Canvas.of_prompts(texts(2, 5), 12, MASK, window=3).candidates.sum(dim=1).tolist() == [3, 3]


@torch.no_grad()
def test_a_report_that_is_not_counting_a_call_has_none() -> None:
    session = Session(backbone_of(tiny_llama()), methods()["none"](), torch.ones(1, 4, dtype=torch.bool))
    assert session.report.row_layers_of == []
    session.logits(Canvas.of_prompts(texts(1, 2), 2, MASK))
    assert len(session.report.row_layers_of) == session.report.calls == 1


def test_decode_options_know_their_rule() -> None:
    assert DecodeOptions(remasking="random").rule(8, 8) == Quota(1)
    assert DecodeOptions(remasking="random").rule(8, 3) == Quota(3)
    assert DecodeOptions(threshold=0.9, min_tokens=2).rule(8, 8) == Threshold(0.9, 2)
