"""How stored features lie in memory: error and size of each format, and the way to host memory and back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from diffcache.formats import DTYPES, Feature, Format, Kept, plain, tensors_of
from diffcache.host import HostFormat
from diffcache.recipes.uniform import UniformConfig
from diffcache.records import bytes_of
from diffcache.schedulers.errors import ConfigError

SHAPES = [(2, 77, 768), (2, 4, 16, 16), (3, 96, 4), (1, 8, 3, 4, 4), (2, 12), (2, 5, 7)]
LARGEST_ERROR = {"bfloat16": 2**-8, "float16": 2**-11, "int8": 1 / 254, "float8": 1 / 16}
"""As fractions of the largest magnitude."""


def kept_as(format: Format, output: Tensor, base: Tensor | None) -> tuple[Kept, Tensor]:
    """What is kept, and what is read of it."""
    kept = format.keep(output, base)
    (read,) = format.read([Feature(0, (kept,))], 1)
    return kept, plain(read[0])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", DTYPES)
def test_a_feature_comes_back_within_its_formats_error(name: str, shape: tuple[int, ...]) -> None:
    output, base = torch.randn(shape), torch.randn(shape)
    for given, truth in ((base, output - base), (None, output)):
        _, read = kept_as(Format(DTYPES[name]), output, given)
        assert read.shape == truth.shape
        assert (read.float() - truth).abs().max() <= LARGEST_ERROR[name] * truth.abs().max() * 1.0001


@pytest.mark.parametrize("shape", [(2, 77, 768), (2, 8, 16, 16), (3, 64, 4), (1, 8, 4, 4, 4)], ids=str)
@pytest.mark.parametrize("name", ["int8", "float8"])
def test_scales_cost_four_bytes_for_256_elements_at_most(name: str, shape: tuple[int, ...]) -> None:
    kept, _ = kept_as(Format(DTYPES[name]), torch.randn(shape), None)
    assert bytes_of(tensors_of(kept)) <= torch.Size(shape).numel() * (1 + 4 / 256)


def test_no_scale_serves_two_samples() -> None:
    """An image does not depend on how large its neighbours in the batch are."""
    alone = torch.randn(1, 3, 5, 4)
    _, together = kept_as(Format(torch.int8), torch.cat([alone, 1000 * torch.randn(1, 3, 5, 4)]), None)
    assert torch.equal(together[:1], kept_as(Format(torch.int8), alone, None)[1])


@pytest.mark.parametrize(
    "output", [torch.arange(6).reshape(2, 3), torch.randn(3), torch.randn(2, 0, 8), torch.randn(1, 32769)]
)
def test_what_no_scale_could_serve_is_kept_as_it_is(output: Tensor) -> None:
    kept, read = kept_as(Format(torch.int8), output, None)
    assert torch.equal(read, output)
    assert isinstance(kept, Tensor)
    assert kept is not output


def test_a_gap_in_memory_makes_no_difference() -> None:
    output = torch.randn(2, 8, 6, 5).transpose(1, 2)
    _, read = kept_as(Format(torch.int8), output, None)
    assert torch.equal(read, kept_as(Format(torch.int8), output.contiguous(), None)[1])


@pytest.mark.parametrize(
    "option", [{"cache_dtype": "int4"}, {"cache_dtype": torch.int8}, {"cache_device": "cuda"}]
)
def test_other_formats_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(option))):
        UniformConfig(**option)


class Counting(HostFormat):
    """Notes which features are carried to the device."""

    def __init__(self) -> None:
        super().__init__(None, torch.device("cpu"))
        self.carried: list[int] = []

    def _back(self, feature: Feature) -> Feature:
        self.carried.append(feature.tick)
        return super()._back(feature)


def test_features_in_host_memory_are_fetched_one_site_ahead() -> None:
    format = Counting()
    rings = [[Feature(site, (format.keep(torch.full((2, 3), float(site)), None),))] for site in range(3)]

    def call() -> list[list[int]]:
        """The sites that have been carried when each of them has been read."""
        seen = []
        for site, ring in enumerate(rings):
            ((read,),) = format.read(ring, 1)
            assert torch.equal(plain(read), torch.full((2, 3), float(site)))
            seen.append(list(format.carried))
        format.rest()
        format.carried.clear()
        return seen

    assert call() == [[0], [0, 1], [0, 1, 2]]
    assert call() == [[0, 1], [0, 1, 2], [0, 1, 2]]


def test_a_feature_that_was_fetched_ahead_and_then_replaced_is_not_used() -> None:
    format = HostFormat(None, torch.device("cpu"))
    first, second = [Feature(0, (torch.zeros(2, 2),))], [Feature(0, (torch.zeros(2, 2),))]
    for _ in range(2):
        format.read(first, 1), format.read(second, 1)
        format.rest()
    format.read(first, 1)
    second[0] = Feature(1, (torch.ones(2, 2),))
    assert torch.equal(plain(format.read(second, 1)[0][0]), torch.ones(2, 2))
