"""Attention around a few tokens, from its log-sum-exp."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from diffcache.kernels.attention_cosine import attention_cosine, cosine_over_heads, cosine_over_keys
from diffcache.kernels.attention_probe import attention_lse, attention_received, key_mass

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SCALE = 0.3
SHAPES = {
    "odd": (2, 4, 2, 3, 70, 12),
    "many tokens": (1, 3, 3, 17, 5, 16),
    "one of each": (1, 1, 1, 1, 1, 1),
}
"""B, H, Hk, T, S, D."""


def attention(shape: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Queries as a projection leaves them, [B, T, H, D] transposed, and keys."""
    b, h, hk, t, s, d = SHAPES[shape]
    return torch.randn(b, t, h, d).transpose(1, 2).to(dtype), torch.randn(b, hk, s, d).to(dtype)


def keys_that_count(keys: Tensor) -> Tensor:
    valid = torch.rand(keys.shape[0], keys.shape[2]) < 0.7
    valid[:, 0] = True
    return valid


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
def test_kernels_and_references(shape: str, dtype: torch.dtype, padded: bool, compare: Any) -> None:
    (q, keys), (new_q, new_keys) = attention(shape, dtype), attention(shape, dtype)
    valid = keys_that_count(keys) if padded else None
    lse, new_lse = (compare(attention_lse, *pair, valid, SCALE) for pair in ((q, keys), (new_q, new_keys)))
    compare(key_mass, q, keys, lse, valid, SCALE)
    compare(attention_received, q, keys, torch.rand(q.shape[0], q.shape[2]), valid, SCALE)
    compare(cosine_over_heads, q, keys, lse, new_q, new_keys, new_lse, valid, SCALE)
    compare(cosine_over_keys, q, keys, lse, new_q, new_keys, new_lse, valid, SCALE)


def test_the_mass_of_all_keys_is_one_for_each_head_and_token(device: torch.device) -> None:
    q, keys = attention("odd")
    mass = key_mass(q, keys, attention_lse(q, keys, None, SCALE), None, SCALE)
    torch.testing.assert_close(mass.sum(-1), torch.full((2,), 4.0 * 3))


def test_a_token_with_infinite_lse_does_not_count(compare: Any) -> None:
    q, keys = attention("odd")
    lse = attention_lse(q, keys, None, SCALE)
    alone = key_mass(q[:, :, :2], keys, lse[:, :, :2], None, SCALE)
    lse[:, :, 2] = torch.inf
    torch.testing.assert_close(compare(key_mass, q, keys, lse, None, SCALE), alone)


def test_what_keys_receive_is_their_mass_where_rows_count_alike(compare: Any) -> None:
    q, keys = attention("odd")
    lse = attention_lse(q, keys, None, SCALE)
    lse[1, :, 2] = torch.inf
    share = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
    received = compare(attention_received, q, keys, share, None, SCALE)
    torch.testing.assert_close(received, key_mass(q, keys, lse, None, SCALE))


@pytest.mark.parametrize("over", ["heads", "keys"])
def test_cosines_are_those_of_the_weights(over: Any, device: torch.device) -> None:
    (q, keys), (new_q, new_keys) = attention("many tokens"), attention("many tokens")
    old, new = ((x @ y.mT * SCALE).softmax(-1) for x, y in ((q, keys), (new_q, new_keys)))
    dims = (1, 2) if over == "heads" else (3, 1)
    lse, new_lse = (attention_lse(x, y, None, SCALE) for x, y in ((q, keys), (new_q, new_keys)))
    found = attention_cosine((q, keys, lse), (new_q, new_keys, new_lse), None, SCALE, over)
    torch.testing.assert_close(found, cosine_similarity(old, new, dim=dims[0]).mean(dims[1]))
    same = attention_cosine((q, keys, lse), (q, keys, lse), None, SCALE, over)
    torch.testing.assert_close(same, torch.ones_like(same))


def test_two_parts_make_the_whole_without_a_copy_of_the_cache(device: torch.device) -> None:
    q, keys = attention("odd")
    new_q, updated = q + 0.1, torch.tensor([3, 40])
    new_keys = keys.clone()
    new_keys[:, :, updated] += 1.0
    lse, new_lse = attention_lse(q, keys, None, SCALE), attention_lse(new_q, new_keys, None, SCALE)
    kept = torch.ones(2, 70, dtype=torch.bool)
    kept[:, updated] = False
    still = attention_cosine((q, new_keys, lse), (new_q, new_keys, new_lse), kept, SCALE)
    rows = keys[:, :, updated], new_keys[:, :, updated]
    moved = attention_cosine((q, rows[0], lse), (new_q, rows[1], new_lse), None, SCALE)
    whole = attention_cosine((q, keys, lse), (new_q, new_keys, new_lse), None, SCALE)
    torch.testing.assert_close((68 * still + 2 * moved) / 70, whole)


def test_no_tokens(compare: Any) -> None:
    q, keys = attention("odd")
    lse = compare(attention_lse, q[:, :, :0], keys, None, SCALE)
    assert not compare(key_mass, q[:, :, :0], keys, lse, None, SCALE).any()


def test_another_axis_is_refused(device: torch.device) -> None:
    q, keys = attention("odd")
    with pytest.raises(ValueError, match="use 'heads' or 'keys'"):
        attention_cosine((q, keys, q), (q, keys, q), None, SCALE, "tokens")  # type: ignore[arg-type]


def test_compiles_into_one_graph(device: torch.device, triton: None) -> None:
    q, keys = attention("odd")

    def probe(q: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        lse = attention_lse(2 * q, keys, None, SCALE)
        cosine = attention_cosine((q, keys, lse), (2 * q, keys, lse), None, SCALE)
        return key_mass(2 * q, keys, lse, None, SCALE), cosine

    compiled = torch.compile(probe, backend="aot_eager", fullgraph=True)(q, keys)
    for one, other in zip(compiled, probe(q, keys), strict=True):
        torch.testing.assert_close(one, other)
