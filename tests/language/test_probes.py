"""Elastic-Cache's probes against the kernels' references, which define the same statistics without keeping any weights."""

import pytest
import torch
from torch import Tensor

from diffcache.kernels.attention_cosine import attention_cosine
from diffcache.kernels.attention_probe import attention_lse, attention_weights
from diffcache.language.drift import Watched
from diffcache.language.probes import attention_drift, most_attended

SCALE = 0.3


def queries_and_keys(seed: int) -> tuple[Tensor, Tensor]:
    """[2, 4, 3, 8] and [2, 2, 11, 8]: two query heads share the keys of one."""
    source = torch.Generator().manual_seed(seed)
    return torch.randn(2, 4, 3, 8, generator=source), torch.randn(2, 2, 11, 8, generator=source)


def padding() -> Tensor:
    real = torch.ones(2, 11, dtype=torch.bool)
    real[0, :4] = False
    return real


@pytest.mark.parametrize("real", [None, padding()], ids=["whole", "padded"])
@pytest.mark.parametrize("over", ["heads", "keys"])
def test_drift_is_the_kernels_cosine_over_the_rows_that_count(over: str, real: Tensor | None) -> None:
    old, new = queries_and_keys(0), queries_and_keys(1)
    before, after = (attention_weights(*pair, real, SCALE) for pair in (old, new))
    share = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    found = attention_drift(before, after, share, real, over == "keys")
    sums = [attention_lse(*pair, real, SCALE) for pair in (old, new)]
    cosine = attention_cosine((*old, sums[0]), (*new, sums[1]), real, SCALE, over)
    torch.testing.assert_close(found, torch.stack([cosine[0, :2].mean(), cosine[1, 0]]))


def test_nothing_that_counts_has_not_drifted() -> None:
    weights = [attention_weights(*queries_and_keys(seed), None, SCALE) for seed in (0, 1)]
    assert attention_drift(weights[0], weights[1], torch.zeros(2, 3), None, False).tolist() == [1.0, 1.0]


def test_the_most_attended_of_each_layer_are_chosen_among_the_eligible() -> None:
    received = torch.tensor([[[0.1, 0.9, 0.5, 0.2]], [[0.8, 0.9, 0.1, 0.2]]])
    eligible = torch.tensor([[True, False, True, True]])
    assert most_attended(received, eligible, 1).tolist() == [[True, False, True, False]]
    assert most_attended(received, eligible, 9).tolist() == eligible.tolist()


def test_short_lists_are_filled_up_with_positions_that_do_not_count() -> None:
    wanted = torch.tensor([[0, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0]]).bool()
    watched = Watched.of(wanted)
    assert watched.rows.tolist() == [[1, 3], [2, 2], [3, 3]]
    assert watched.share.tolist() == [[0.5, 0.5], [1.0, 0.0], [0.0, 0.0]]
