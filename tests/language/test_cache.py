"""TokenKVCache: any rows, in any order, ragged and padded, give what was computed in full; nothing is read unwritten."""

import pytest
import torch
from language.tiny import Walker, texts, tiny_llama
from torch import Tensor
from transformers.models.llama.modeling_llama import rotate_half

from diffcache.language.cache import TokenKVCache, rows_of
from diffcache.schedulers.errors import TargetError


def everywhere(tokens: Tensor) -> Tensor:
    return torch.ones_like(tokens, dtype=torch.bool)


@pytest.mark.parametrize(
    "rows",
    [
        slice(3, 9),
        torch.tensor([[0, 5, 11], [2, 3, 4]]),
        torch.tensor([[11, 0, 7, 7, 0], [4, 4, 4, 4, 4]]),
    ],
    ids=["range", "ragged", "any order, repeated"],
)
def test_rows_of_an_unchanged_text_have_the_full_logits(rows: Tensor | slice) -> None:
    tokens = texts(2, 12)
    walker = Walker(tiny_llama(), everywhere(tokens))
    full = walker.full(tokens)
    again = walker(tokens, rows)
    wanted = full[:, rows] if isinstance(rows, slice) else full[torch.arange(2)[:, None], rows]
    torch.testing.assert_close(again, wanted, atol=1e-5, rtol=0)


class Simulator:
    """Stale keys and values by the book: one text, one row and one head at a time, own rotation and softmax."""

    def __init__(self, model: torch.nn.Module, real: Tensor) -> None:
        self.model, self.real = model, real
        self.kept: dict[tuple[int, int, int], tuple[Tensor, Tensor]] = {}

    @torch.no_grad()
    def __call__(self, tokens: Tensor, wanted: Tensor, offset: int = 0) -> dict[tuple[int, int], Tensor]:
        """Logits by (text, position) of the wanted rows; `offset` shifts their rotation (the negative control)."""
        core = self.model.model
        rows = [(text, at) for text, at in wanted.nonzero().tolist()]
        hidden = {row: core.embed_tokens(tokens[row]) for row in rows}
        for layer, part in enumerate(core.layers):
            attention = part.self_attn
            queries = {}
            for (text, at), state in hidden.items():
                cos, sin = core.rotary_emb(state[None, None], torch.tensor([[at + offset]]))
                normed = part.input_layernorm(state)
                q, k = (
                    projection(normed).view(-1, attention.head_dim)
                    for projection in (attention.q_proj, attention.k_proj)
                )
                q, k = (t * cos[0] + rotate_half(t) * sin[0] for t in (q, k))
                queries[text, at] = q
                self.kept[layer, text, at] = (k, attention.v_proj(normed).view(-1, attention.head_dim))
            for (text, at), state in hidden.items():
                seen = [
                    i for i in range(tokens.shape[1]) if self.real[text, i] and (layer, text, i) in self.kept
                ]
                k, v = (
                    torch.stack([self.kept[layer, text, i][part] for i in seen]).repeat_interleave(2, 1)
                    for part in (0, 1)
                )
                scores = torch.einsum("hd,shd->hs", queries[text, at], k) * attention.scaling
                out = torch.einsum("hs,shd->hd", scores.softmax(-1), v).flatten()
                state = state + attention.o_proj(out)
                hidden[text, at] = state + part.mlp(part.post_attention_layernorm(state))
        return {row: self.model.lm_head(core.norm(state)) for row, state in hidden.items()}


def largest_difference(offset: int) -> float:
    """Six rounds of random edits and random rows over two texts, the first padded on the left."""
    model, tokens = tiny_llama(), texts(2, 10)
    real = everywhere(tokens)
    real[0, :3] = False
    walker, simulator = Walker(model, real), Simulator(model, real)
    generator = torch.Generator().manual_seed(1)
    wanted, largest = everywhere(tokens), 0.0
    for seed in range(6):
        rows = rows_of(wanted)
        logits = walker(tokens, rows)
        expected = simulator(tokens, wanted, offset)
        for (text, at), expect in expected.items():
            if real[text, at]:
                got = logits[text, rows[text].tolist().index(at)]
                largest = max(largest, float((got - expect).abs().max()))
        edits = torch.rand(tokens.shape, generator=generator) < 0.3
        tokens = torch.where(edits, texts(2, 10, seed), tokens)
        wanted = real & (torch.rand(tokens.shape, generator=generator) < 0.4)
        offset = 3 * offset  # one constant offset would change nothing: rotation is relative
    return largest


def test_edits_and_ragged_rows_leave_stale_what_was_not_computed() -> None:
    assert largest_difference(offset=0) < 1e-5


def test_the_simulator_notices_wrong_positions() -> None:
    assert largest_difference(offset=1) > 1e-2


def test_what_is_not_written_is_not_attended() -> None:
    model, tokens = tiny_llama(), texts(2, 8)
    exact = Walker(model, everywhere(tokens)).full(tokens)
    longer = Walker(model, torch.ones(2, 20, dtype=torch.bool))
    torch.testing.assert_close(longer(tokens, slice(0, 8)), exact, atol=1e-5, rtol=0)
    assert longer.cache.mask(slice(0, 8)) is not None
    longer.cache.tokens.fill_(0)  # the negative control: claim that everything is written
    assert (longer(tokens, slice(0, 8)) - exact).abs().max() > 1e-2


def test_padding_is_not_attended() -> None:
    model, tokens = tiny_llama(), texts(1, 9)
    exact = Walker(model, everywhere(tokens)).full(tokens)
    padded = torch.cat([texts(1, 4, seed=5), tokens], dim=1)
    real = everywhere(padded)
    real[:, :4] = False
    torch.testing.assert_close(Walker(model, real).full(padded)[:, 4:], exact, atol=1e-4, rtol=0)


def test_dirty_is_what_was_computed_from_another_token() -> None:
    tokens = texts(2, 6)
    walker = Walker(tiny_llama(), everywhere(tokens))
    walker.full(tokens)
    edited = tokens.clone()
    edited[0, 2] = edited[1, 5] = 3
    assert walker.cache.dirty(edited).nonzero().tolist() == [[0, 2], [1, 5]]
    walker(edited, rows_of(walker.cache.dirty(edited)))
    assert not walker.cache.dirty(edited).any()


def test_rows_of_ragged_texts_repeat_a_real_row() -> None:
    wanted = torch.tensor([[1, 0, 1, 1, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0]]).bool()
    assert rows_of(wanted).tolist() == [[0, 2, 3], [1, 1, 1], [4, 4, 4]]


def test_a_methods_features_only_on_request() -> None:
    real = torch.ones(1, 4, dtype=torch.bool)
    assert not TokenKVCache(2, real, dtype=torch.float32).method_features
    cache = TokenKVCache(2, real, dtype=torch.float32, features={"inputs": (32,)})
    assert cache.features("inputs", 0).shape == (1, 0, 32)
    assert cache.nbytes == 4 * 2 * 4 * 32
    cache.write(0, slice(0, 1), torch.ones(1, 2, 1, 8), torch.ones(1, 2, 1, 6))
    assert cache.nbytes == 4 * (2 * 4 * 32 + 2 * 4 * (8 + 6))


def test_a_text_longer_than_the_cache_is_refused() -> None:
    cache = TokenKVCache(1, torch.ones(1, 4, dtype=torch.bool), dtype=torch.float32)
    with pytest.raises(TargetError, match="5 positions and the cache 4"):
        cache.resize(5)
