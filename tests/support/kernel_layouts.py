"""How the tensors that kernels are given lie in memory."""

from collections.abc import Callable

import torch
from torch import Tensor

LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "one element": lambda: torch.randn(1),
    "odd": lambda: torch.randn(2, 7, 65),
    "several tiles": lambda: torch.randn(3, 3001),
    "token slice": lambda: torch.randn(2, 9, 24)[:, 2:7],
    "channel slice": lambda: torch.randn(2, 9, 3, 4, 5)[:, :4],
    "last-dimension slice": lambda: torch.randn(2, 5, 40)[..., 3:23],
    "short rows": lambda: torch.randn(2, 5, 40)[..., 3:5],
    "channels last": lambda: torch.randn(2, 6, 5, 7).to(memory_format=torch.channels_last),
    "transposed": lambda: torch.randn(2, 33, 17).transpose(1, 2),
    "transposed slice": lambda: torch.randn(2, 33, 17).transpose(1, 2)[:, :9],
    "expanded": lambda: torch.randn(1, 7, 25).expand(3, 7, 25),
    "video": lambda: torch.randn(1, 4, 3, 5, 20),
}


def like(tensor: Tensor) -> Tensor:
    """Other numbers, of the same dtype and laid out alike."""
    other = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return other.copy_(torch.randn(tensor.shape)) if 0 not in tensor.stride() else torch.randn_like(tensor)


def keys_that_count(keys: Tensor) -> Tensor:
    """Which of the keys [B, Hk, S, D] count, bool [B, S]: about 70 %, and the first of each text."""
    valid = torch.rand(keys.shape[0], keys.shape[2]) < 0.7
    valid[:, 0] = True
    return valid
