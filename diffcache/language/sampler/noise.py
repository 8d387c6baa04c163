"""Noise: random numbers that depend on a text's own seed, its position and its number of calls, and on nothing else.

So what is drawn for a text does not depend on the texts beside it in a batch, on padding, or on which rows a cache computes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from diffcache.schedulers.errors import ConfigError

_STEP = -7046029254386353131
_FIRST, _SECOND = -4658895280553007687, -7723592293110705685


@dataclass(frozen=True)
class Noise:
    """Uniform numbers, counted instead of drawn in turn (SplitMix64; Steele, Lea, Flood 2014).

    Attributes:
        seeds: int64 [b, 1], one for each text.
        prompt: positions count from here, so that padding in front of a prompt changes nothing.
    """

    seeds: Tensor
    prompt: int

    @classmethod
    def of(cls, seed: int | list[int] | None, batch: int, prompt: int, device: torch.device) -> Noise:
        """From one seed for all texts, a seed for each text, or PyTorch's random state (None).

        Raises:
            ConfigError: not one seed for each text.
        """
        if isinstance(seed, list):
            if len(seed) != batch:
                raise ConfigError(
                    f"there are {len(seed)} seeds for {batch} text{'s' * (batch > 1)}: give one each."
                )
            seeds = torch.tensor([*map(_signed, seed)], device=device)
        else:
            first = int(torch.randint(2**62, ())) if seed is None else _signed(seed)
            seeds = _mixed(torch.arange(batch, device=device) + _mixed(torch.tensor(first, device=device)))
        return cls(_mixed(seeds)[:, None], prompt)

    def of_positions(self, calls: Tensor, positions: Tensor) -> Tensor:
        """Float64 in (0, 1), [b, m], for positions [b or 1, m] of texts that have seen so many calls, int64 [b, 1]."""
        return _unit(self._keys(calls, positions))

    def of_tokens(self, calls: Tensor, positions: Tensor, vocabulary: int) -> Tensor:
        """Float64 in (0, 1), [b, m, vocabulary]: likewise, for each token of a vocabulary."""
        keys = self._keys(calls, positions)[..., None]
        return _unit(_mixed(keys + (torch.arange(vocabulary, device=keys.device) + 1) * _STEP))

    def _keys(self, calls: Tensor, positions: Tensor) -> Tensor:
        of_call = _mixed(self.seeds + (calls + 1) * _STEP)
        return _mixed(of_call + (positions - self.prompt + 1) * _STEP)


def _signed(seed: int) -> int:
    """The lower 64 bits of a seed as int64 has them: PyTorch's own seeds go up to 2^64."""
    return (seed + 2**63) % 2**64 - 2**63


def gumbel(uniform: Tensor) -> Tensor:
    """Gumbel noise of uniform numbers in (0, 1)."""
    return -(-uniform.log()).log()


def _mixed(number: Tensor) -> Tensor:
    """The same int64 numbers, their bits mixed."""
    number = (number ^ _right(number, 30)) * _FIRST
    number = (number ^ _right(number, 27)) * _SECOND
    return number ^ _right(number, 31)


def _right(number: Tensor, bits: int) -> Tensor:
    """Bits moved to the right; zeros come in."""
    return (number >> bits) & ((1 << (64 - bits)) - 1)


def _unit(number: Tensor) -> Tensor:
    """Float64 in (0, 1) from the upper 53 bits."""
    return (_right(number, 11).double() + 0.5) * 2.0**-53
