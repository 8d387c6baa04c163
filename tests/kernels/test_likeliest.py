"""The likeliest token and its odds equal their reference for any vocabulary, with ties and values that are not finite."""

from typing import Any

import pytest
import torch
from torch import Tensor

from diffcache.kernels.likeliest import likeliest

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def odds_of(logits: Tensor, token: int) -> Tensor:
    """What the odds of a token should be, in float64."""
    others = logits.double().index_fill(1, torch.tensor(token), -torch.inf)
    return (logits[:, token] - others.logsumexp(dim=1)).float()


@pytest.mark.parametrize("vocabulary", [1, 2, 1000, 4096, 4097, 9001])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_vocabulary(vocabulary: int, dtype: torch.dtype, compare: Any) -> None:
    compare(likeliest, torch.randn(3, vocabulary).mul(4).to(dtype))


def test_gaps_between_rows(compare: Any) -> None:
    compare(likeliest, torch.randn(3, 200)[:, 20:120])
    compare(likeliest, torch.randn(120, 4).T)


def test_the_lowest_of_equals_wins(compare: Any) -> None:
    logits = torch.zeros(1, 9001)
    logits[0, [8000, 5000, 4500]] = 1.0
    token, odds = compare(likeliest, logits)
    assert token.item() == 4500
    torch.testing.assert_close(odds, odds_of(logits, 8000))


def test_the_runner_up_may_be_in_the_winners_chunk_or_in_another(compare: Any) -> None:
    logits = torch.zeros(2, 9001)
    logits[:, 7] = 9.0
    logits[0, 8], logits[1, 8000] = 8.0, 8.0
    _, odds = compare(likeliest, logits)
    torch.testing.assert_close(odds, odds_of(logits, 7))


def test_forbidden_tokens(compare: Any) -> None:
    logits = torch.randn(2, 9001)
    logits[:, :5000] = -torch.inf  # a whole chunk
    token, odds = compare(likeliest, logits)
    assert (token >= 5000).all()
    assert odds.isfinite().all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_has_no_odds(value: float, device: torch.device, triton: None) -> None:
    logits = torch.randn(2, 5000)
    logits[0, 4500] = value
    logits[1] = -torch.inf
    assert likeliest(logits)[1].isnan().all()


@pytest.mark.parametrize("place", [0, 7, 4500, 4999])
def test_a_nan_is_found_beside_the_likeliest_and_in_another_chunk(
    place: int, device: torch.device, triton: None
) -> None:
    logits = torch.zeros(1, 5000)
    logits[0, 7] = 9.0
    logits[0, place] = torch.nan
    assert likeliest(logits)[1].isnan().all()


def test_not_finite_rows_agree(compare: Any) -> None:
    logits = torch.randn(2, 5000)
    logits[0, 4500] = torch.inf
    logits[1] = -torch.inf
    compare(likeliest, logits)


def test_odds_tell_sure_rows_apart_whose_probability_is_one(compare: Any) -> None:
    logits = torch.zeros(4, 9001)
    logits[:, 4500] = torch.tensor([30.0, 40.0, 90.0, 200.0])
    logits[3, 7] = 195.0
    _, odds = compare(likeliest, logits)
    assert (logits.softmax(dim=1)[:3, 4500] == 1).all()
    torch.testing.assert_close(odds, odds_of(logits, 4500), atol=1e-4, rtol=1e-6)


@pytest.mark.parametrize("vocabulary", [1, 2])
def test_odds_in_a_tiny_vocabulary(vocabulary: int, compare: Any) -> None:
    _, odds = compare(likeliest, torch.tensor([[2.0, 1.0]])[:, :vocabulary])
    assert odds.item() == (torch.inf if vocabulary == 1 else 1.0)


def test_no_rows(compare: Any) -> None:
    compare(likeliest, torch.randn(0, 50))


def test_compiles_into_one_graph(device: torch.device, triton: None) -> None:
    logits = torch.randn(3, 50)
    compiled = torch.compile(lambda x: likeliest(2 * x)[1], backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(logits), likeliest(2 * logits)[1])
