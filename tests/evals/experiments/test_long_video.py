"""The control of participative compression is one."""

import torch

from diffcache.evals.experiments.long_video import POLICIES


def test_random_choices_differ_between_layers_and_can_be_repeated():
    keys = torch.randn(2, 2, 3, 64, 8)
    first, second = (POLICIES["random-choice"].relevance(keys[i], keys[i], 1.0) for i in range(2))
    assert first.shape == (2, 1, 64)
    assert not torch.equal(first, second)
    assert torch.equal(first, POLICIES["random-choice"].relevance(keys[0], keys[0], 1.0))
