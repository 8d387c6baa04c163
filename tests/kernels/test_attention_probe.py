"""The attention of a few tokens equals its reference, and all keys together receive one for each head and token."""

from typing import Any

import pytest
import torch
from support.kernel_layouts import keys_that_count
from torch import Tensor

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


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
def test_kernels_and_references(shape: str, dtype: torch.dtype, padded: bool, compare: Any) -> None:
    q, keys = attention(shape, dtype)
    valid = keys_that_count(keys) if padded else None
    lse = compare(attention_lse, q, keys, valid, SCALE)
    compare(key_mass, q, keys, lse, valid, SCALE)
    compare(attention_received, q, keys, torch.rand(q.shape[0], q.shape[2]), valid, SCALE)


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


def test_no_tokens(compare: Any) -> None:
    q, keys = attention("odd")
    lse = compare(attention_lse, q[:, :, :0], keys, None, SCALE)
    assert not compare(key_mass, q[:, :, :0], keys, lse, None, SCALE).any()


def test_compiles_into_one_graph(device: torch.device, triton: None) -> None:
    q, keys = attention("odd")

    def probe(q: Tensor, keys: Tensor) -> Tensor:
        return key_mass(2 * q, keys, attention_lse(2 * q, keys, None, SCALE), None, SCALE)

    compiled = torch.compile(probe, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(q, keys), probe(q, keys))


@pytest.mark.parametrize("full", [1, 30, 9999])
def test_several_programs_that_share_a_loop_find_what_one_does(
    full: int, compare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr("diffcache.kernels.attention_probe_triton.FULL", full)
    q, keys = attention("odd")
    lse = compare(attention_lse, q, keys, keys_that_count(keys), SCALE)
    compare(key_mass, q, keys, lse, keys_that_count(keys), SCALE)


def test_loops_are_shared_until_a_gpu_is_full() -> None:
    pytest.importorskip("triton")
    from diffcache.kernels.attention_probe_triton import shared_loop

    assert shared_loop(32, 128) == (9, 15)
    assert shared_loop(264, 128) == (1, 128)
    assert shared_loop(1, 3) == (3, 1)
