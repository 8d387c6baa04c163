"""Cuts: which units a call has to watch."""

from diffcache.discovery.cuts import Cuts
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
