"""What a search can minimise: each is least where it should be, and says what it is called."""

import torch

from diffcache.evals.experiments.objectives import kid_to_full, minus_reward


def pictures(seed: int) -> torch.Tensor:
    return torch.rand(32, 3, 64, 64, generator=torch.Generator().manual_seed(seed))


def test_kid_is_least_for_the_same_kind_of_pictures() -> None:
    loss = kid_to_full()
    assert loss.__name__ == "kid_to_full"
    assert loss(pictures(0), pictures(1)) < loss(pictures(0) ** 4, pictures(1))


def test_a_reward_is_turned_round() -> None:
    loss = minus_reward(lambda shown: shown.flatten(1).mean(1))
    assert loss(pictures(0), pictures(1)) > loss(pictures(0) + 1, pictures(1))
    assert loss.__name__ == "minus <lambda>"
