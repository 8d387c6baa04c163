"""The error model predicts scores."""

from __future__ import annotations

import torch
from support.searches.toy import Toy, evolved

from diffcache.schedulers.search.evolution import Evolution
from diffcache.schedulers.search.surrogate import ErrorModel


def test_the_error_model_predicts_the_order_of_tables_that_it_has_not_seen() -> None:
    toy = Toy()
    search = evolved(Evolution(toy.seeds(), population=24), 20, toy.evaluate)
    model = ErrorModel(toy.drifts, toy.prices)
    fitted = model.fit(search.tables[:200], search.scores[:200])
    predicted, found = fitted(search.tables[200:]), search.scores[200:]
    assert torch.corrcoef(torch.stack([predicted[:, 0], found[:, 0]]))[0, 1] > 0.9
    torch.testing.assert_close(predicted[:, 1], found[:, 1])
