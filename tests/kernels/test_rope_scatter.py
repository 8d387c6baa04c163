"""Rotary embedding and scatter give the model's own bits, in place, for rows in any order, repeated or skipped."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from diffcache.kernels.rope_scatter import rope_scatter, signed

pytestmark = pytest.mark.usefixtures("device", "poisoned", "triton")

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
SLOTS = 6


class Case(NamedTuple):
    """The arguments of `rope_scatter`."""

    q: Tensor
    k: Tensor
    v: Tensor
    cos: Tensor
    sin: Tensor
    rows: Tensor | None
    keys: Tensor
    values: Tensor


def case(
    rows: list[list[int]] | None, dtype: torch.dtype = torch.float32, *, heads: tuple[int, int] = (4, 2),
    channels: int = 12, rotated: int = 12, tables: torch.dtype | None = None,
) -> Case:  # fmt: skip
    """Queries as a projection leaves them, [B, n, H, D] transposed; without rows, all slots in order."""
    slots = None if rows is None else torch.tensor(rows, dtype=torch.int32)
    batch, n = (2, SLOTS) if slots is None else slots.shape
    angles = torch.randn(1 if slots is None else batch, n, rotated)
    q = torch.randn(batch, n, heads[0], channels).transpose(1, 2)
    k, v = torch.randn(2, batch, heads[1], n, channels).unbind()
    keys, values = torch.randn(2, batch, heads[1], SLOTS, channels).unbind()
    q, k, v, keys, values = (x.to(dtype) for x in (q, k, v, keys, values))
    cos, sin = angles.cos().to(tables or dtype), signed(angles.sin()).to(tables or dtype)
    return Case(q, k, v, cos, sin, slots, keys, values)


def own_rotation(given: Case) -> tuple[Tensor, Tensor]:
    """Queries and keys by Transformers' own function; models that rotate in fp32 convert before and after."""
    size = given.cos.shape[-1]
    turned = apply_rotary_pos_emb(
        given.q[..., :size].to(given.cos.dtype), given.k[..., :size].to(given.cos.dtype), given.cos, signed(given.sin)
    )  # fmt: skip
    queries, keys = (
        torch.cat([turn.to(x.dtype), x[..., size:]], dim=-1)
        for turn, x in zip(turned, (given.q, given.k), strict=True)
    )
    return queries, keys


def interpreted(given: Case) -> float:
    """What the interpreter is off by at most: where a GPU rounds to bf16 it cuts two products and their sum off."""
    if torch.cuda.is_available() or given.q.dtype != torch.bfloat16:
        return 0.0
    return 3 * torch.finfo(torch.bfloat16).eps * float(max(given.q.abs().max(), given.k.abs().max()))


def check(given: Case) -> Case:
    """Runs the kernel and its reference, compares results and caches, and returns what the caches held before."""
    old = given._replace(keys=given.keys.clone(), values=given.values.clone())
    twin = given._replace(keys=given.keys.clone(), values=given.values.clone())
    result, expected = rope_scatter(*given), rope_scatter.reference(*twin)
    for one, other in ((result, expected), (given.keys, twin.keys)):
        torch.testing.assert_close(one, other, rtol=0.0, atol=interpreted(given))
    assert result.stride() == expected.stride() or result.numel() == 0
    assert torch.equal(given.values, twin.values)
    return old


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tables", [None, torch.float32], ids=["same tables", "fp32 tables"])
@pytest.mark.parametrize("rotated", [12, 8], ids=["all channels", "some"])
def test_the_reference_has_the_models_own_bits(
    dtype: torch.dtype, tables: torch.dtype | None, rotated: int
) -> None:
    given = case(None, dtype, rotated=rotated, tables=tables if dtype.itemsize < 4 else None)
    queries, keys = own_rotation(given)
    assert torch.equal(rope_scatter.reference(*given), queries)
    assert torch.equal(given.keys, keys)
    assert torch.equal(given.values, given.v)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [None, [[0, 5, 3], [2, 1, 4]]], ids=["in order", "rows"])
def test_any_dtype(dtype: torch.dtype, rows: Any) -> None:
    check(case(rows, dtype))
    if dtype.itemsize < 4:
        check(case(rows, dtype, tables=torch.float32))


@pytest.mark.parametrize("heads", [(1, 1), (3, 3), (6, 2)], ids=str)
@pytest.mark.parametrize("channels", [(2, 2), (12, 8), (16, 16), (21, 6)], ids=str)
def test_any_heads_and_partial_rotation(heads: tuple[int, int], channels: tuple[int, int]) -> None:
    check(case([[5]], heads=heads, channels=channels[0], rotated=channels[1]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("channels", [64, 96, 128, 256])
@pytest.mark.parametrize(
    "rows",
    [[[3]], [[5, 2, 0, 4, 1, 3], [0, 1, 2, 3, 4, 5]]],
    ids=["one", "every slot"],
)
def test_head_sizes_of_published_models(channels: int, rows: Any, dtype: torch.dtype) -> None:
    check(case(rows, dtype, heads=(2, 1), channels=channels, rotated=channels))


def test_any_layout() -> None:
    given = case(None)
    joint = torch.randn(2, SLOTS, 8, 12).transpose(1, 2)
    given = given._replace(q=joint[:, :4], k=joint[:, 4:6], v=joint[:, 6:])
    check(given)
    check(given._replace(q=given.q.mT.contiguous().mT, keys=given.keys.mT.contiguous().mT))
    check(given._replace(keys=torch.randn(2, 2, 2 * SLOTS, 12)[:, :, 3 : 3 + SLOTS]))


def test_repeated_rows_are_idempotent() -> None:
    once = case([[3, 5]])
    assert once.rows is not None
    twice = [0, 1, 1, 0]
    again = once._replace(
        **{name: getattr(once, name)[:, :, twice] for name in "qkv"},
        cos=once.cos[:, twice], sin=once.sin[:, twice], rows=once.rows[:, twice],
        keys=once.keys.clone(), values=once.values.clone(),
    )  # fmt: skip
    check(once)
    check(again)
    assert torch.equal(once.keys, again.keys)
    assert torch.equal(once.values, again.values)


def test_no_rows() -> None:
    given = case([[1]])
    assert given.rows is not None
    check(
        given._replace(
            **{name: getattr(given, name)[:, :, :0] for name in "qkv"},
            cos=given.cos[:, :0], sin=given.sin[:, :0], rows=given.rows[:, :0],
        )
    )  # fmt: skip


def test_addresses_beyond_32_bits() -> None:
    given = case([[0, 1, 2]], torch.float16, heads=(1, 1))
    far = torch.empty_strided((1, 1, 3, 12), (0, 0, 2**30 + 16, 1), dtype=torch.float16)
    near = torch.empty(1, 1, 3, 12, dtype=torch.float16)
    rope_scatter(*given._replace(keys=far))
    rope_scatter.reference(*given._replace(keys=near))
    assert torch.equal(far, near)


def test_compiles_into_one_graph() -> None:
    given = case([[2, 5, 3]])
    caches = given.keys.clone(), given.values.clone()

    def step(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return rope_scatter(*given._replace(q=2 * q, keys=keys, values=values)) + keys.sum()

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)(given.q, *caches)
    torch.testing.assert_close(compiled, step(given.q, given.keys, given.values))
    assert torch.equal(caches[0], given.keys)
