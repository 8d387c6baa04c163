"""Cuts: which units a call has to watch, and what stands for those that it skips."""

import pytest
import torch

from diffcache.discovery.cuts import Cuts, Placeholder
from diffcache.discovery.sites import Site


def site(*units: str) -> Site:
    return Site(f"{units[0]}..{units[-1]}", "range", units, (), 0, 0.1)


def test_the_edges_of_sites_and_the_tapped_unit_are_all_that_a_computed_pass_sees() -> None:
    units = ["blocks.0", "blocks.1", "blocks.2", "blocks.3", "mid", "blocks.3#1"]
    paths = dict(enumerate(units[:5]))
    sites = site("blocks.1", "blocks.2", "blocks.3"), site("mid", "blocks.3#1")
    assert set(Cuts(sites, {}, paths, "").edges.values()) == {"blocks.1", "blocks.3", "mid"}
    assert set(Cuts(sites, {}, paths, "blocks.0").edges.values()) == {
        "blocks.0",
        "blocks.1",
        "blocks.3",
        "mid",
    }


@pytest.mark.parametrize(
    ("output", "may_be_shared"),
    [
        (torch.zeros(2), True),
        ((torch.zeros(2), torch.zeros(3)), True),
        ([torch.zeros(2)], False),  # the forward may append to it
        ((torch.zeros(2), torch.zeros(3, dtype=torch.long)), False),  # the forward may index with it
        ((torch.zeros(2), None), False),
    ],
)
def test_a_placeholder_stands_for_several_calls_where_nobody_can_tell(
    output: object, may_be_shared: bool
) -> None:
    assert Placeholder({}, output).may_be_shared is may_be_shared


def test_a_placeholder_that_passes_an_argument_on_stands_for_one_call() -> None:
    given = torch.zeros(2)
    placeholder = Placeholder({"x": given}, (given, torch.zeros(3)))
    assert not placeholder.may_be_shared
    other = torch.ones(2)
    assert placeholder.make({"x": other})[0] is other
