"""Confidence of tokens equals its reference for any vocabulary and choice of rows, with ties and values that are not finite."""

from typing import Any

import pytest
import torch

from diffcache.kernels.confidence import confidence, likeliest, top_two

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("vocabulary", [1, 2, 1000, 4096, 4097, 9001])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_vocabulary(vocabulary: int, dtype: torch.dtype, compare: Any) -> None:
    logits = torch.randn(3, vocabulary).mul(4).to(dtype)
    compare(top_two, logits, None)
    compare(top_two, logits, torch.tensor([2, 0, 2, 2]))
    compare(likeliest, logits)


def test_gaps_between_rows(compare: Any) -> None:
    compare(top_two, torch.randn(3, 200)[:, 20:120], torch.tensor([1]))
    compare(top_two, torch.randn(120, 4).T, None)


def test_the_lowest_of_equals_wins(compare: Any) -> None:
    logits = torch.zeros(1, 9001)
    logits[0, [8000, 5000, 4500]] = 1.0
    token, probability, runner_up, _ = compare(top_two, logits, None)
    assert token.item() == 4500
    assert probability == runner_up


def test_the_runner_up_may_be_in_the_winners_chunk_or_in_another(compare: Any) -> None:
    logits = torch.zeros(2, 9001)
    logits[:, 7] = 9.0
    logits[0, 8], logits[1, 8000] = 8.0, 8.0
    _, probability, runner_up, _ = compare(top_two, logits, None)
    torch.testing.assert_close(probability / runner_up, torch.full((2,), torch.e))


def test_forbidden_tokens(compare: Any) -> None:
    logits = torch.randn(2, 9001)
    logits[:, :5000] = -torch.inf  # a whole chunk
    token, *rest = compare(top_two, logits, None)
    assert (token >= 5000).all()
    assert all(x.isfinite().all() for x in rest)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_has_no_probability(value: float, device: torch.device, triton: None) -> None:
    logits = torch.randn(2, 5000)
    logits[0, 4500] = value
    logits[1] = -torch.inf
    assert confidence(logits).probability.isnan().all()
    assert likeliest(logits)[1].isnan().all()


def test_not_finite_rows_agree(compare: Any) -> None:
    logits = torch.randn(2, 5000)
    logits[0, 4500] = torch.inf
    logits[1] = -torch.inf
    compare(top_two, logits, None)


def test_odds_tell_sure_rows_apart_whose_probability_is_one(compare: Any) -> None:
    logits = torch.zeros(4, 9001)
    logits[:, 4500] = torch.tensor([30.0, 40.0, 90.0, 200.0])
    logits[3, 7] = 195.0
    _, odds = compare(likeliest, logits)
    assert (confidence(logits).probability[:3] == 1).all()
    others = logits.double().index_fill(1, torch.tensor(4500), -torch.inf)
    expected = logits[:, 4500] - others.logsumexp(dim=1)
    torch.testing.assert_close(odds, expected.float(), atol=1e-4, rtol=1e-6)


@pytest.mark.parametrize("vocabulary", [1, 2])
def test_odds_in_a_tiny_vocabulary(vocabulary: int, compare: Any) -> None:
    _, odds = compare(likeliest, torch.tensor([[2.0, 1.0]])[:, :vocabulary])
    assert odds.item() == (torch.inf if vocabulary == 1 else 1.0)


def test_no_active_rows(compare: Any) -> None:
    compare(top_two, torch.randn(3, 50), torch.zeros(0, dtype=torch.int64))


def test_entropy_of_equals_is_the_logarithm_of_their_number(device: torch.device) -> None:
    torch.testing.assert_close(confidence(torch.zeros(1, 5000)).entropy, torch.tensor([5000.0]).log())


def test_logits_are_a_matrix(device: torch.device) -> None:
    with pytest.raises(ValueError, match="flatten all but the vocabulary"):
        confidence(torch.zeros(2, 3, 4))


def test_compiles_into_one_graph(device: torch.device, triton: None) -> None:
    logits = torch.randn(3, 50)
    compiled = torch.compile(lambda x: confidence(2 * x).probability, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(logits), confidence(2 * logits).probability)
