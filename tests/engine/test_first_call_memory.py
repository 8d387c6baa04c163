"""The first call of a guidance pass needs a plain call's memory, what is stored after it, and one block's tensors at most."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diffcache.evals.experiments.first_call import DEEP_DENOISERS, first_calls


@pytest.mark.parametrize("name", DEEP_DENOISERS)
def test_a_first_call_keeps_no_more_than_one_blocks_tensors_beside_what_is_stored(name: str) -> None:
    for one in first_calls(DEEP_DENOISERS[name]):
        assert one.kept_on_top <= one.block, one


@pytest.mark.parametrize(
    ("name", "sites"), [("flux", ("sub-layer", "block", "stack")), ("sd", ("depth 1", "sub-layer"))]
)
def test_what_is_not_known_to_be_a_site_yet_is_kept_in_the_cache_format(
    name: str, sites: tuple[str, ...]
) -> None:
    for one in first_calls(replace(DEEP_DENOISERS[name], sites=sites), cache_dtype="int8"):
        assert one.kept_on_top <= one.block, one


def test_residuals_are_not_needed_for_outputs() -> None:
    for one in first_calls(replace(DEEP_DENOISERS["flux"], sites=("block", "stack")), basis="output"):
        assert one.kept_on_top <= one.block, one
