"""What contenders gain on even ticks, over rows that hold the PSNR in dB of each contender in one setting."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

EVEN = ("even", "even, order 2")
ALIKE = 0.5
"""Differences that are smaller, in dB, are none."""


def even_of(row: Mapping[str, Any]) -> float:
    """PSNR of even ticks in dB, the better of two orders."""
    return max(float(row[name]) for name in EVEN)


def gained(gains: Sequence[float]) -> str:
    """What is gained over rows in dB, in words, up to the number of rows that lose."""
    below = sum(gain < -ALIKE for gain in gains)
    return (
        f"median {median(gains):+.1f} dB, from {min(gains):+.1f} to {max(gains):+.1f}; more than {ALIKE} dB below in {below} of "
        f"{len(gains)} rows"
    )
