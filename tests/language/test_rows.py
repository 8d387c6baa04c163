"""What is computed: row counts against closed forms, and that no written token stays as the mask it was."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from language.tiny import MASK, drawn, stored_keys, texts, tiny_llama
from torch import Tensor

from diffcache import accelerate, generate, methods, report
from diffcache.evals.language.model_shapes import SHAPES
from diffcache.language.backbones.families import backbone_of
from diffcache.language.cache import put
from diffcache.language.recipes.base import LanguageConfig
from diffcache.language.recipes.dkv import nearest
from diffcache.language.report import Costs
from diffcache.language.sampler.canvas import Canvas
from diffcache.language.sampler.decoding import highest
from diffcache.language.session import Session

PROMPT, GEN, BLOCK, LAYERS = 4, 24, 8, 3
LENGTH = PROMPT + GEN
BLOCKS = range(PROMPT, LENGTH, BLOCK)


def dkv_rows(block: int, interval: int) -> int:
    """All rows every `interval` calls; else what is masked, and the one token that was just written."""
    calls = range(GEN)
    return sum(LENGTH if i % block % interval == 0 else GEN - i + 1 for i in calls)


CLOSED_FORMS: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "none": ("none", {}, BLOCK, LENGTH * GEN),
    "prefix": ("fast-dllm-prefix", {}, BLOCK, sum(LENGTH + (BLOCK - 1) * (LENGTH - a) for a in BLOCKS)),
    "dual": ("fast-dllm-dual", {}, BLOCK, 3 * (LENGTH + (BLOCK - 1) * BLOCK)),
    "vicinity": (
        "vicinity",
        {"before": 2, "after": 2, "warmup_steps": 0},
        BLOCK,
        sum(LENGTH + (BLOCK - 1) * (min(a + BLOCK + 2, LENGTH) - a + 2) for a in BLOCKS),
    ),
    "dkv-decode, one block": ("dkv-decode", {"interval": 100}, GEN, dkv_rows(GEN, 100)),
    "dkv-decode, one block, interval 4": ("dkv-decode", {"interval": 4}, GEN, dkv_rows(GEN, 4)),
    "dkv-decode, blocks": ("dkv-decode", {"interval": 4}, BLOCK, dkv_rows(BLOCK, 4)),
    "dkv-decode, not ahead": (
        "dkv-decode",
        {"interval": 100, "ahead": False},
        BLOCK,
        3 * (LENGTH + sum(BLOCK - call + 1 for call in range(1, BLOCK))),
    ),
    "dkv-prefill": ("dkv-prefill", {}, GEN, LENGTH + (GEN - 1) * GEN),
    "elastic, never refreshed": ("elastic-cache", {"threshold": -1.01, "window": 6}, GEN, -1),
    "block-causal": ("block-causal", {}, BLOCK, PROMPT + 2 * BLOCK + GEN * BLOCK),
}


@pytest.mark.parametrize("case", CLOSED_FORMS)
def test_rows_and_operations_are_those_of_the_closed_form(case: str) -> None:
    method, options, block, expected = CLOSED_FORMS[case]
    model = accelerate(tiny_llama(), method, **options)
    generate(model, texts(1, PROMPT), gen_length=GEN, block_length=block, eos_early_stop=False)
    told = report(model)
    if case.startswith("elastic"):
        # the window, what was just written, and at most one tracked token of each layer
        least = LENGTH + sum(min(6, GEN - i) + 1 for i in range(1, GEN))
        assert least <= told.row_layers / LAYERS <= least + LAYERS * (GEN - 1)
        return
    assert told.row_layers == expected * LAYERS
    assert sum(told.row_layers_of) == told.row_layers
    assert told.full_row_layers == LENGTH * GEN * LAYERS
    costs = told.costs
    assert told.full_flops == GEN * costs.call(LENGTH, LENGTH, block)
    assert told.plain_flops == GEN * costs.call(LENGTH, LENGTH, LENGTH)
    if case in ("none", "prefix", "dual", "vicinity", "dkv-prefill"):  # read whole blocks
        head = GEN * block * costs.head
        assert told.flops == told.row_layers * (costs.row + costs.pair * LENGTH) + head


@pytest.mark.parametrize(
    ("where", "full"),
    [
        ({"block_length": 32}, [0, 32]),
        ({"block_length": 64}, list(range(0, 64, 8))),
        ({"window": 16}, list(range(0, 64, 8))),
        ({"window": 16, "block_length": 32}, list(range(0, 64, 8))),
    ],
    ids=str,
)
def test_the_default_refreshes_each_block_of_32_once_and_all_else_every_eight_calls(
    where: dict[str, int], full: list[int]
) -> None:
    model = accelerate(tiny_llama())
    generate(model, texts(1, 40), gen_length=64, eos_early_stop=False, **where)
    computed = report(model).row_layers_of
    assert [call for call, rows in enumerate(computed) if rows == 104 * LAYERS] == full


@pytest.mark.parametrize("ahead", [False, True])
def test_around_left_open_computes_the_whole_of_a_short_block(ahead: bool) -> None:
    model = accelerate(tiny_llama(), "dkv-decode", interval=None, ahead=ahead, around=None)
    generate(model, texts(1, 10), gen_length=16, block_length=8, eos_early_stop=False)
    per_call = [rows // LAYERS for rows in report(model).row_layers_of]
    behind = 8 if ahead else 0
    assert per_call == [26, *[8 + behind] * 7, 26, *[8] * 7]


def test_around_left_open_computes_eight_neighbours_in_a_window() -> None:
    found = []
    for around in (None, 8):
        model = accelerate(tiny_llama(), "dkv-decode", ahead=False, around=around)
        generate(model, texts(1, 10), gen_length=64, window=4, eos_early_stop=False)
        found.append(report(model).row_layers_of)
    assert found[0] == found[1]


def test_around_computes_the_neighbours_of_candidates_written_or_not() -> None:
    model = accelerate(tiny_llama(), "dkv-decode", interval=100, ahead=False, around=3)
    generate(model, texts(1, 10), gen_length=8, block_length=8, eos_early_stop=False, steps=8)
    per_call = [rows // LAYERS for rows in report(model).row_layers_of]
    assert per_call[0] == 18
    assert per_call[1] == 3 + 8  # three of the prompt, and the block, whose masks are all near


def test_greedy_computes_what_is_next_what_was_last_and_a_window() -> None:
    model = accelerate(tiny_llama(), "dkv-greedy", interval=100, window=4)
    generate(model, texts(1, PROMPT), gen_length=GEN, remasking="random", seed=0, eos_early_stop=False)
    per_call = [rows // LAYERS for rows in report(model).row_layers_of]
    assert per_call == [LENGTH, *(1 + 1 + min(4, GEN - i - 1) for i in range(1, GEN))]


def test_nearest_looks_left_and_right() -> None:
    among = torch.tensor([[1, 1, 0, 0, 1, 1, 1]]).bool()
    assert nearest(among, torch.tensor([[3]]), 3).int().tolist() == [[0, 1, 0, 0, 1, 1, 0]]
    assert nearest(among, torch.tensor([[3]]), 2).int().tolist() == [[0, 1, 0, 0, 1, 0, 0]]
    assert nearest(among, torch.tensor([[3]]), 9).int().tolist() == among.int().tolist()
    assert not nearest(among, torch.tensor([[-1]]), 9).any()


def test_each_of_several_next_tokens_has_a_window_of_its_own() -> None:
    model = accelerate(tiny_llama(), "dkv-greedy", interval=100, window=4)
    options = {"gen_length": GEN, "block_length": GEN, "steps": 8, "remasking": "random", "seed": 0}
    generate(model, texts(1, PROMPT), eos_early_stop=False, **options)
    per_call = [rows // LAYERS for rows in report(model).row_layers_of]
    # three to be written, the three that were, four around each of the former; at most what is left
    assert per_call == [LENGTH, *(3 + 3 + min(12, GEN - 3 * i - 3) for i in range(1, 8))]


LLADA_8B = Costs(2 * (4 * 4096**2 + 3 * 4096 * 12288), 4 * 4096, 2 * 4096 * 126464, 2 * 4096**2, 32)


def test_costs_are_counted_from_the_weights() -> None:
    net = backbone_of(tiny_llama())
    d, d_kv, d_ff, vocabulary = 32, 16, 48, net.vocabulary
    costs = Costs.of(net)
    assert costs.row == 2 * (2 * d * d + 2 * d * d_kv + 3 * d * d_ff)
    assert (costs.pair, costs.head) == (4 * d, 2 * d * vocabulary)
    assert Costs.of(backbone_of(SHAPES["llada-8b"].build("meta"))) == LLADA_8B


@pytest.mark.parametrize(
    ("prompt", "written", "published"),
    [(893, 256, (6.6, 17.2, 4.4)), (1000, 512, (4.9, 19.3, 3.6)), (100, 512, (2.2, 12.2, 2.0))],
    ids=str,
)
def test_a_llada_8b_saves_what_the_closed_forms_say(
    prompt: int, written: int, published: tuple[float, float, float]
) -> None:
    length, block = prompt + written, 32

    def call(rows: int) -> int:
        return LLADA_8B.call(rows, length, rows)

    starts = range(prompt, length, block)
    prefix = sum(call(length) + (block - 1) * call(length - start) for start in starts)
    dual = len(starts) * (call(length) + (block - 1) * call(block))
    # dKV-Cache's authors compute the second call in full too
    dkv = sum(call(length if i % 8 == 0 or i == 1 else written - i + 1) for i in range(written))
    full = written * call(length)
    assert tuple(round(full / cost, 1) for cost in (prefix, dual, dkv)) == published


def stale_after(method: str, call: int, **options: Any) -> Tensor:
    """Bool [b, S]: which written tokens still have keys and values of another token, after so many calls."""
    config = methods()[method](**options)
    canvas = Canvas.of_prompts(texts(2, PROMPT), GEN, MASK)
    session = Session(backbone_of(tiny_llama()), config, torch.ones_like(canvas.tokens, dtype=torch.bool))
    canvas.window = session.config.commit_window
    just_written = torch.zeros_like(canvas.tokens, dtype=torch.bool)
    with torch.no_grad():
        for step in range(call):
            if session.config.commit_window is None and step % BLOCK == 0:
                canvas.enter(range(BLOCKS[step // BLOCK], BLOCKS[step // BLOCK] + BLOCK))
            logits, predicted = session.logits(canvas)
            tokens, sure = drawn(logits)
            dense = torch.full(
                (len(tokens), PROMPT + GEN + 1), -torch.inf
            )  # the last: no position of the text
            guess = dense.to(torch.int64)
            put(dense, predicted, sure, dim=1)
            put(guess, predicted, tokens, dim=1)
            dense, guess = dense[:, :-1].masked_fill(~canvas.candidates, -torch.inf), guess[:, :-1]
            just_written = highest(dense) & dense.isfinite()
            canvas.rewrite(torch.where(just_written, guess, canvas.tokens))
            canvas.advance()
    return session.cache.dirty(canvas.tokens) & ~just_written


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("dkv-decode", {"interval": 100}),
        ("dkv-decode", {"interval": 100, "ahead": False}),
        ("elastic-cache", {"threshold": -1.01, "window": 5}),
    ],
    ids=["dkv-decode", "dkv-decode, not ahead", "elastic-cache"],
)
@pytest.mark.parametrize("call", [1, 7, 8, 9, 20])
def test_a_written_token_is_computed_once_more_at_the_next_call(
    method: str, options: dict[str, Any], call: int
) -> None:
    assert not stale_after(method, call, **options).any()


@pytest.mark.parametrize("method", ["fast-dllm-dual", "vicinity"])
def test_block_caches_are_stale_in_no_more_than_a_blocks_last_token(method: str) -> None:
    assert not stale_after(method, BLOCK, **({"warmup_steps": 0} if method == "vicinity" else {})).any()
    late = stale_after("fast-dllm-dual", BLOCK + 1)
    assert not late.any()  # the next block's first call is full


@torch.no_grad()
def test_a_position_is_predicted_once_also_where_texts_want_fewer_rows_than_others() -> None:
    canvas = Canvas.of_prompts(texts(2, PROMPT), GEN, MASK)
    session = Session(
        backbone_of(tiny_llama()), methods()["dkv-decode"](), torch.ones_like(canvas.tokens).bool()
    )
    session.logits(canvas)
    canvas.advance()
    written = canvas.tokens.clone()
    written[0, PROMPT:-2] = written[1, PROMPT:-6] = 9
    canvas.rewrite(written)
    session.logits(canvas)  # what was written is stored, and the masks are left
    canvas.advance()
    _, predicted = session.logits(canvas)
    assert isinstance(predicted, Tensor)
    assert predicted.shape[1] < GEN
    for positions in predicted:
        found = positions[positions < LENGTH]
        assert len(found.unique()) == len(found)


def blocks_in(session: Session, canvas: Canvas) -> Iterator[Tensor]:
    """Logits of a call in each block."""
    for start in BLOCKS:
        canvas.enter(range(start, start + BLOCK))
        yield session.logits(canvas)[0]
        canvas.advance()


EDITABLE = [
    name for name, method in methods().items() if issubclass(method, LanguageConfig) and name != "dkv-greedy"
]


@pytest.mark.parametrize("at", [2, PROMPT + 1], ids=["prompt", "written block"])
@pytest.mark.parametrize("method", EDITABLE)
@torch.no_grad()
def test_an_edited_token_is_computed_in_every_layer_at_the_next_call(method: str, at: int) -> None:
    canvas = Canvas.of_prompts(texts(2, PROMPT), GEN, MASK)
    real = torch.ones_like(canvas.tokens, dtype=torch.bool)
    session = Session(backbone_of(tiny_llama()), methods()[method](), real)
    canvas.window = session.config.commit_window
    calls = blocks_in(session, canvas)
    next(calls), next(calls)
    before = stored_keys(session.cache)[..., at, :]
    canvas.rewrite(canvas.tokens.index_put((torch.tensor(0), torch.tensor(at)), torch.tensor(7)))
    canvas.edited = True
    session.logits(canvas)
    changed = (stored_keys(session.cache)[..., at, :] != before).flatten(2).any(dim=2)
    assert changed[:, 0].all()


@torch.no_grad()
def test_block_causal_after_an_edit_is_as_if_it_had_always_stood_so() -> None:
    edited = texts(2, PROMPT + GEN)
    given = edited.clone()
    given[:, [1, PROMPT + 3]] = 5
    found = []
    for tokens in (given, edited):
        session = Session(
            backbone_of(tiny_llama()), methods()["block-causal"](), torch.ones_like(tokens, dtype=torch.bool)
        )
        canvas = Canvas.of_prompts(tokens, 0, MASK)
        *_, last = blocks_in(session, canvas)
        if tokens is given:
            canvas.rewrite(edited)
            canvas.edited = True
            last, _ = session.logits(canvas)
        found.append(last)
    torch.testing.assert_close(*found, atol=1e-5, rtol=0)
