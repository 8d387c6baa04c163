"""The attention of a few tokens equals its reference, and all keys together receive one for each head and token."""

from typing import Any

import pytest
import torch
from support.kernel_layouts import keys_that_count
from torch import Tensor

from diffcache.kernels.attention_probe import attention_received

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
def test_kernel_and_reference(shape: str, dtype: torch.dtype, padded: bool, compare: Any) -> None:
    q, keys = attention(shape, dtype)
    valid = keys_that_count(keys) if padded else None
    compare(attention_received, q, keys, torch.rand(q.shape[0], q.shape[2]), valid, SCALE)


def test_all_keys_together_receive_one_for_each_head_and_token(compare: Any) -> None:
    q, keys = attention("odd")
    received = compare(attention_received, q, keys, torch.ones(2, 3), None, SCALE)
    torch.testing.assert_close(received.sum(-1), torch.full((2,), 4.0 * 3))


def test_a_row_without_a_share_does_not_count(compare: Any) -> None:
    q, keys = attention("odd")
    share = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
    received = compare(attention_received, q, keys, share, None, SCALE)
    for text, rows in ((0, 3), (1, 2)):
        alone = attention_received(q[:, :, :rows], keys, torch.ones(2, rows), None, SCALE)
        torch.testing.assert_close(received[text], alone[text])


def test_no_tokens(compare: Any) -> None:
    q, keys = attention("odd")
    assert not compare(attention_received, q[:, :, :0], keys, torch.ones(2, 0), None, SCALE).any()


def test_compiles_into_one_graph(device: torch.device, triton: None) -> None:
    (q, keys), share = attention("odd"), torch.rand(2, 3)

    def probe(q: Tensor, keys: Tensor) -> Tensor:
        return attention_received(2 * q, keys, share, None, SCALE)

    compiled = torch.compile(probe, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(q, keys), probe(q, keys))


@pytest.mark.parametrize("full", [1, 30, 9999])
def test_several_programs_that_share_a_loop_find_what_one_does(
    full: int, compare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr("diffcache.kernels.attention_probe_triton.FULL", full)
    q, keys = attention("odd")
    compare(attention_received, q, keys, torch.rand(2, 3), keys_that_count(keys), SCALE)


def test_loops_are_shared_until_a_gpu_is_full() -> None:
    pytest.importorskip("triton")
    from diffcache.kernels.attention_probe_triton import shared_loop

    assert shared_loop(32, 128) == (9, 15)
    assert shared_loop(264, 128) == (1, 128)
    assert shared_loop(1, 3) == (3, 1)
