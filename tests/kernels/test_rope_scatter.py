"""Rotary embedding and scatter: in place, any row order, repeated and skipped rows."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from diffcache.kernels.dispatch import SWITCH
from diffcache.kernels.rope_scatter import rope_scatter, rotate_and_scatter, row_drift

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SLOTS = 9


class Case(NamedTuple):
    """The arguments of `rotate_and_scatter`."""

    q: Tensor
    k: Tensor
    v: Tensor
    rows: Tensor
    positions: Tensor
    cos: Tensor
    sin: Tensor
    keys: Tensor
    values: Tensor


def case(
    rows: list[list[int]], dtype: torch.dtype = torch.float32, *, heads: tuple[int, int] = (4, 2),
    channels: int = 12, rotated: int = 12,
) -> Case:  # fmt: skip
    """Queries as a projection leaves them, [B, n, H, D] transposed."""
    slots = torch.tensor(rows, dtype=torch.int32)
    batch, n = slots.shape
    angles = torch.randn(SLOTS + 5, rotated // 2)
    q = torch.randn(batch, n, heads[0], channels).transpose(1, 2)
    k, v = torch.randn(2, batch, heads[1], n, channels).unbind()
    keys, values = torch.randn(2, batch, heads[1], SLOTS, channels).unbind()
    q, k, v, keys, values = (x.to(dtype) for x in (q, k, v, keys, values))
    return Case(q, k, v, slots, slots.clamp(min=0) + 3, angles.cos(), angles.sin(), keys, values)


def compare_in_place(compare: Any, given: Case, tolerance: float = 2e-6) -> Case:
    """Checks rotated queries and drift, and the caches that either way of computing leaves behind."""
    twin = given._replace(keys=given.keys.clone(), values=given.values.clone())
    compare(row_drift, given.k, given.v, *given[3:])
    old = given._replace(keys=given.keys.clone(), values=given.values.clone())
    result = rotate_and_scatter(*given)
    expected = rotate_and_scatter.reference(*twin)
    for one, other in ((result, expected), (given.keys, twin.keys), (given.values, twin.values)):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=2e-6)
    return old


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_dtype(dtype: torch.dtype, compare: Any) -> None:
    compare_in_place(compare, case([[0, 8, 3], [2, 1, 7]], dtype), max(torch.finfo(dtype).eps, 2e-6))


@pytest.mark.parametrize("heads", [(1, 1), (3, 3), (6, 2)], ids=str)
@pytest.mark.parametrize("channels", [(2, 2), (12, 8), (16, 16), (20, 6)], ids=str)
def test_any_heads_and_partial_rotation(
    heads: tuple[int, int], channels: tuple[int, int], compare: Any
) -> None:
    compare_in_place(compare, case([[5]], heads=heads, channels=channels[0], rotated=channels[1]))


def test_skipped_rows_change_nothing(compare: Any) -> None:
    given = case([[4, -1, 9], [-1, -1, -1]])
    old = compare_in_place(compare, given)
    untouched = [slot for slot in range(SLOTS) if slot != 4]
    assert torch.equal(given.keys[0][:, untouched], old.keys[0][:, untouched])
    assert torch.equal(given.values[1], old.values[1])


def test_repeated_rows_are_idempotent(compare: Any) -> None:
    once = case([[3, 6]])
    again = Case(
        *(x[:, :, [0, 1, 1, 0]] for x in once[:3]), *(x[:, [0, 1, 1, 0]] for x in once[3:5]), *once[5:]
    )
    again = again._replace(keys=once.keys.clone(), values=once.values.clone())
    compare_in_place(compare, once)
    compare_in_place(compare, again)
    assert torch.equal(once.keys, again.keys)
    assert torch.equal(once.values, again.values)


def test_no_rows(compare: Any) -> None:
    given = case([[1]])
    nothing = Case(*(x[:, :, :0] for x in given[:3]), *(x[:, :0] for x in given[3:5]), *given[5:])
    compare_in_place(compare, nothing)


@pytest.mark.parametrize("kernels", ["triton", "reference"])
def test_drift_is_measured_against_the_old_row(
    kernels: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, kernels)
    q, k, v, rows, positions, cos, sin, keys, values = case([[2, -1, 5]])
    rope_scatter(q, k, v, rows, cos, sin, keys, values, positions=positions)
    values[:, :, 5] = 0
    other_v = torch.cat([-v[:, :, :1], v[:, :, 1:]], dim=2)
    _, drift = rope_scatter(q, k, other_v, rows, cos, sin, keys, values, positions=positions, drift=True)
    torch.testing.assert_close(drift, torch.tensor([[[1.0, 1.0, 1.0]], [[-1.0, 1.0, 0.0]]]))


def test_slots_are_the_positions_unless_given(device: torch.device) -> None:
    q, k, v, rows, _, cos, sin, keys, values = case([[2, 5]])
    implied, drift = rope_scatter(q, k, v, rows, cos, sin, keys, values)
    stated, _ = rope_scatter(q, k, v, rows, cos, sin, keys, values, positions=rows)
    assert drift is None
    assert torch.equal(implied, stated)


def test_a_cache_in_other_layout_is_refused(device: torch.device) -> None:
    q, k, v, rows, _, cos, sin, keys, values = case([[2]])
    with pytest.raises(ValueError, match="contiguous channels"):
        rope_scatter(q, k, v, rows, cos, sin, keys.mT.contiguous().mT, values)


def test_compiles_into_one_graph(device: torch.device, triton: None) -> None:
    q, k, v, rows, _, cos, sin, keys, values = case([[2, 5, 2]])
    caches = keys.clone(), values.clone()

    def step(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        rotated, _ = rope_scatter(2 * q, k, v, rows, cos, sin, keys, values)
        return rotated + keys.sum()

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)(q, *caches)
    torch.testing.assert_close(compiled, step(q, keys, values))
    assert torch.equal(caches[0], keys)
