"""The first call of a guidance pass needs a plain call's memory, what is stored after it, and one block's tensors at most."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from diffcache.evals.experiments.first_call import DEEP_DENOISERS, FirstCall, first_calls


def assert_within_a_block(calls: Iterable[FirstCall]) -> None:
    found = [*calls]
    assert found
    assert all(one.kept_on_top <= one.block for one in found), found


@pytest.mark.parametrize("name", DEEP_DENOISERS)
def test_a_first_call_keeps_no_more_than_one_blocks_tensors_beside_what_is_stored(name: str) -> None:
    assert_within_a_block(first_calls(DEEP_DENOISERS[name]))


@pytest.mark.parametrize(
    ("name", "sites"), [("flux", ("sub-layer", "block", "stack")), ("sd", ("depth 1", "sub-layer"))]
)
def test_what_is_not_known_to_be_a_site_yet_is_kept_in_the_cache_format(
    name: str, sites: tuple[str, ...]
) -> None:
    assert_within_a_block(first_calls(replace(DEEP_DENOISERS[name], sites=sites), cache_dtype="int8"))


def test_residuals_are_not_needed_for_outputs() -> None:
    flux = replace(DEEP_DENOISERS["flux"], sites=("block", "stack"))
    assert_within_a_block(first_calls(flux, basis="output"))
