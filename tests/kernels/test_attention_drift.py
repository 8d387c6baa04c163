"""Attention drift equals its reference and what full attention weights give, though of the old keys only some rows are kept."""

from typing import Any, NamedTuple

import pytest
import torch
from support.kernel_layouts import keys_that_count
from torch import Tensor
from torch.nn.functional import cosine_similarity

from diffcache.kernels.attention_drift import attention_drift
from diffcache.kernels.attention_probe import attention_received, attention_weights

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SCALE = 0.3
SHAPES = {
    "odd": (2, 4, 2, 2, 3, 37, 12, 5),
    "many tokens": (1, 3, 3, 18, 17, 5, 16, 2),
    "one of each": (1, 1, 1, 1, 1, 1, 1, 1),
}
"""B, H, Hk, W, T, S, D, n."""


class Case(NamedTuple):
    """The tensors that `attention_drift` is given."""

    queries: Tensor
    share: Tensor
    old_queries: Tensor
    keys: Tensor
    rows: Tensor
    old_keys: Tensor

    @property
    def all_old_keys(self) -> Tensor:
        """The keys before they were overwritten."""
        rows = self.rows[:, None, :, None].expand(self.old_keys.shape)
        return self.keys.scatter(2, rows, self.old_keys)


def case(shape: str, dtype: torch.dtype = torch.float32) -> Case:
    """Queries as a projection leaves them, [B, T, H, D] transposed; rows in any order."""
    b, h, hk, w, t, s, d, n = SHAPES[shape]
    queries, old_queries = (torch.randn(b, rows, h, d).transpose(1, 2).to(dtype) for rows in (w + t, t))
    keys, old_keys = torch.randn(b, hk, s, d).to(dtype), torch.randn(b, hk, n, d).to(dtype)
    rows = torch.stack([torch.randperm(s)[:n] for _ in range(b)])
    return Case(queries, torch.rand(b, w), old_queries, keys, rows, old_keys)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
@pytest.mark.parametrize("over_keys", [False, True], ids=["heads", "keys"])
def test_it_is_what_the_weights_say(
    shape: str, dtype: torch.dtype, padded: bool, over_keys: bool, compare: Any
) -> None:
    given = case(shape, dtype)
    valid = keys_that_count(given.keys) if padded else None
    received, cosines = compare(attention_drift, *given, valid, SCALE, over_keys)
    window = given.share.shape[1]
    by_window = attention_received.reference(
        given.queries[:, :, :window], given.keys, given.share, valid, SCALE
    )
    torch.testing.assert_close(received, by_window)
    old, new = (
        attention_weights(*pair, valid, SCALE)
        for pair in ((given.old_queries, given.all_old_keys), (given.queries[:, :, window:], given.keys))
    )
    if over_keys:
        expected = cosine_similarity(old, new, dim=3).mean(1)
    else:
        sums = cosine_similarity(old, new, dim=1).sum(2)
        expected = sums / (given.keys.shape[2] if valid is None else valid.sum(1, keepdim=True))
    torch.testing.assert_close(cosines, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("over_keys", [False, True], ids=["heads", "keys"])
def test_what_has_not_changed_is_alike(over_keys: bool, compare: Any) -> None:
    given = case("odd")
    rows = given.rows[:, None, :, None].expand(given.old_keys.shape)
    same = given._replace(old_queries=given.queries[:, :, 2:], old_keys=given.keys.gather(2, rows))
    _, cosines = compare(attention_drift, *same, None, SCALE, over_keys)
    torch.testing.assert_close(cosines, torch.ones_like(cosines))


def test_rows_may_repeat_and_be_int32(compare: Any) -> None:
    given = case("odd")
    twice = [0, 1, 1, 4, 3, 2, 2]
    again = given._replace(rows=given.rows[:, twice].int(), old_keys=given.old_keys[:, :, twice])
    _, cosines = compare(attention_drift, *again, None, SCALE, False)
    torch.testing.assert_close(cosines, attention_drift.reference(*given, None, SCALE, False)[1])


def test_keys_in_a_longer_cache(compare: Any) -> None:
    given = case("odd")
    longer = torch.full((2, 2, 50, 12), torch.nan)
    longer[:, :, :37] = given.keys
    inside = given._replace(keys=longer[:, :, :37], old_keys=given.old_keys.mT.contiguous().mT)
    for one, other in zip(
        compare(attention_drift, *inside, None, SCALE, True),
        attention_drift.reference(*given, None, SCALE, True),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_no_rows(compare: Any) -> None:
    given = case("odd")
    still = given._replace(
        old_queries=given.queries[:, :, 2:], rows=given.rows[:, :0], old_keys=given.old_keys[:, :, :0]
    )
    _, cosines = compare(attention_drift, *still, None, SCALE, False)
    torch.testing.assert_close(cosines, torch.ones_like(cosines))


def test_no_tokens(compare: Any) -> None:
    given = case("odd")
    none = given._replace(queries=given.queries[:, :, :2], old_queries=given.old_queries[:, :, :0])
    received, cosines = compare(attention_drift, *none, None, SCALE, False)
    assert received.shape == (2, 37)
    assert cosines.shape == (2, 0)


def test_compiles_into_one_graph(device: torch.device, triton: None) -> None:
    given = case("odd")

    def drift(queries: Tensor) -> tuple[Tensor, Tensor]:
        return attention_drift(*given._replace(queries=2 * queries), None, SCALE, False)

    compiled = torch.compile(drift, backend="aot_eager", fullgraph=True)
    for one, other in zip(compiled(given.queries), drift(given.queries), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("full", [1, 30, 9999])
@pytest.mark.parametrize("over_keys", [False, True], ids=["heads", "keys"])
def test_several_programs_that_share_a_loop_find_what_one_does(
    full: int, over_keys: bool, compare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr("diffcache.kernels.attention_probe_triton.FULL", full)
    given = case("odd")
    compare(attention_drift, *given, keys_that_count(given.keys), SCALE, over_keys)
