"""How stored features lie in memory: error and size of each format, and the way to host memory and back."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import pytest
import torch
from torch import Tensor

from diffcache.recipes.uniform import UniformConfig
from diffcache.schedulers.errors import ConfigError
from diffcache.store import formats
from diffcache.store.formats import DTYPES, EightBits, Format, Ring, weighted_sum
from diffcache.store.placement import Feature, HostMemory, Kept

SHAPES = [(2, 77, 768), (2, 4, 16, 16), (3, 96, 4), (1, 8, 3, 4, 4), (2, 12), (2, 5, 7)]
LARGEST_ERROR = {"bfloat16": 2**-8, "float16": 2**-11, "int8": 1 / 254, "float8": 1 / 16}
"""As fractions of the largest magnitude."""


def ring_of(format: Format, pairs: list[tuple[Tensor, Tensor | None]], depth: int = 1) -> Ring:
    ring: Ring = deque(maxlen=depth)
    for tick, pair in enumerate(pairs):
        format.push(ring, tick, [pair])
    return ring


def read_of(format: Format, ring: Ring, *weights: float) -> Tensor:
    """The weighted sum of a ring's newest features."""
    features, given = format.read(ring, weights or (1.0,))
    return weighted_sum([feature[0] for feature in features], given)


def stored(dtype: torch.dtype, output: Tensor, base: Tensor | None = None) -> tuple[Kept, Tensor]:
    """What is kept, and what is read of it."""
    format = format_of(dtype)
    ring = ring_of(format, [(output, base)])
    return ring[0].tensors[0], read_of(format, ring)


def format_of(dtype: torch.dtype) -> Format:
    return EightBits(dtype) if dtype.itemsize == 1 else Format(dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", DTYPES)
def test_a_feature_comes_back_within_its_formats_error(name: str, shape: tuple[int, ...]) -> None:
    output, base = torch.randn(shape), torch.randn(shape)
    for given, truth in ((base, output - base), (None, output)):
        _, read = stored(DTYPES[name], output, given)
        assert read.shape == truth.shape
        assert (read.float() - truth).abs().max() <= LARGEST_ERROR[name] * truth.abs().max() * 1.0001


@pytest.mark.parametrize("shape", [(2, 77, 768), (2, 8, 16, 16), (3, 64, 4), (1, 8, 4, 4, 4)], ids=str)
@pytest.mark.parametrize("name", ["int8", "float8"])
def test_scales_cost_four_bytes_for_256_elements_at_most(name: str, shape: tuple[int, ...]) -> None:
    kept, _ = stored(DTYPES[name], torch.randn(shape))
    assert kept.nbytes <= torch.Size(shape).numel() * (1 + 4 / 256)


def test_no_scale_serves_two_samples() -> None:
    """An image does not depend on how large its neighbours in the batch are."""
    alone = torch.randn(1, 3, 5, 4)
    _, together = stored(torch.int8, torch.cat([alone, 1000 * torch.randn(1, 3, 5, 4)]))
    assert torch.equal(together[:1], stored(torch.int8, alone)[1])


@pytest.mark.parametrize(
    "output", [torch.arange(6).reshape(2, 3), torch.randn(3), torch.randn(2, 0, 8), torch.randn(1, 32769)]
)
def test_what_no_scale_could_serve_is_kept_as_it_is(output: Tensor) -> None:
    kept, read = stored(torch.int8, output)
    assert torch.equal(read, output)
    assert isinstance(kept, Tensor)
    assert kept is not output


def test_a_gap_in_memory_makes_no_difference() -> None:
    output = torch.randn(2, 8, 6, 5).transpose(1, 2)
    _, read = stored(torch.int8, output)
    assert torch.equal(read, stored(torch.int8, output.contiguous())[1])


@pytest.mark.parametrize("weights", [(2.0, -1.0), (3.0, -3.0, 1.0), (1.0,)], ids=str)
def test_extrapolating_does_not_multiply_the_error_of_eight_bits(weights: tuple[float, ...]) -> None:
    """The features differ by a tenth: only the oldest one's error counts, and it counts once."""
    steps = [torch.randn(2, 64, 256)]
    for _ in range(4):
        steps.append(steps[-1] + 0.1 * torch.randn(2, 64, 256))
    format = EightBits(torch.int8)
    ring = ring_of(format, [(step, None) for step in steps], depth=3)
    truth = sum(weight * step for weight, step in zip(weights, reversed(steps), strict=False))
    error = (read_of(format, ring, *weights) - truth).pow(2).mean().sqrt()
    alone = (stored(torch.int8, steps[0])[1] - steps[0]).pow(2).mean().sqrt()
    assert error < 1.2 * alone
    assert [feature.tick for feature in ring] == [4, 3, 2]


def test_a_stream_without_rows_goes_along_with_one_that_has_them() -> None:
    format, ring = EightBits(torch.int8), deque[Feature](maxlen=2)
    values = [(torch.randn(1, 8, 32), torch.randn(5), torch.arange(3) + i) for i in range(3)]
    for tick, outputs in enumerate(values):
        format.push(ring, tick, [(output, None) for output in outputs])
    features, weights = format.read(ring, [2.0, -1.0])
    _, flat, numbers = (weighted_sum(past, weights) for past in zip(*features, strict=True))
    torch.testing.assert_close(flat, 2 * values[2][1] - values[1][1])
    assert torch.equal(numbers, values[2][2])


@pytest.mark.parametrize("name", [None, *DTYPES])
def test_a_feature_without_tensors_is_one_too(name: str | None) -> None:
    """A block that returns its input leaves nothing to store."""
    format, ring = formats.format_of(name), deque[Feature](maxlen=2)
    for tick in range(3):
        format.push(ring, tick, [])
    assert [(feature.tick, feature.tensors) for feature in ring] == [(2, ()), (1, ())]


@pytest.mark.parametrize(
    "option", [{"cache_dtype": "int4"}, {"cache_dtype": torch.int8}, {"cache_device": "cuda"}]
)
def test_other_formats_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(option))):
        UniformConfig(**option)


class Counting(HostMemory):
    """Notes which features are copied to the device."""

    def __init__(self) -> None:
        super().__init__()
        self.copied: list[int] = []
        self.copies: weakref.WeakSet[Feature] = weakref.WeakSet()

    def _to_device(self, feature: Feature) -> Feature:
        self.copied.append(feature.tick)
        copy = super()._to_device(feature)
        self.copies.add(copy)
        return copy


def holding(tick: int) -> Ring:
    return deque([Feature(tick, (torch.full((2, 3), float(tick)),))], maxlen=1)


def test_features_in_host_memory_are_fetched_one_site_ahead() -> None:
    memory = Counting()
    rings = [holding(site) for site in range(3)]

    def call() -> list[list[int]]:
        """After each site is read, the sites that have been copied."""
        seen = []
        for site, ring in enumerate(rings):
            assert torch.equal(read_of(Format(memory=memory), ring), torch.full((2, 3), float(site)))
            seen.append(list(memory.copied))
        memory.end_call()
        memory.copied.clear()
        return seen

    assert call() == [[0], [0, 1], [0, 1, 2]]
    assert call() == [[0, 1], [0, 1, 2], [0, 1, 2]]
    assert not memory.copies


def test_between_calls_nothing_is_on_the_device() -> None:
    memory, first, second = Counting(), holding(1), holding(2)
    memory.get(first, 1), memory.get(second, 1)
    memory.end_call()
    memory.get(first, 1)  # and the call is broken off, after the second one has been sent for
    assert len(memory.copies) == 1
    memory.end_call()
    assert not memory.copies


def test_a_feature_that_was_fetched_ahead_and_then_replaced_is_not_used() -> None:
    memory = HostMemory()
    first, second = holding(1), holding(2)
    for _ in range(2):
        memory.get(first, 1), memory.get(second, 1)
        memory.end_call()
    memory.get(first, 1)
    second.appendleft(holding(3)[0])
    assert torch.equal(read_of(Format(memory=memory), second), torch.full((2, 3), 3.0))
