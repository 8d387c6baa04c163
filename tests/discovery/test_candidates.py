"""What is kept of a first call is dropped as soon as it cannot be a site any more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakSet

import pytest
import torch
from support import flows

from diffcache.discovery.candidates import Arguments, shapes_tell
from diffcache.discovery.first_call import compute_first_call
from diffcache.discovery.site_names import units_for
from diffcache.discovery.wanted import Request
from diffcache.hooks.class_swap import swapped
from diffcache.hooks.watcher import unit_members
from diffcache.host.call import Call


class Kept:
    """Something that was kept."""


class CountingKeeper:
    """Keeps nothing, and counts what would be kept at once."""

    def __init__(self) -> None:
        self.most = 0
        self._alive = WeakSet[Kept]()

    def keep(self, kind: str, first: Call, output: Any, continues: Mapping[int, str]) -> Kept:
        kept = Kept()
        self._alive.add(kept)
        self.most = max(self.most, len(self._alive))
        return kept

    def keep_again(
        self, like: Kept, kind: str, call: Arguments, output: Any, continues: Mapping[int, str]
    ) -> Kept:
        raise AssertionError("no two blocks here are alike")

    def waiting(self, nbytes: int) -> None:
        pass


@pytest.mark.parametrize(("name", "most"), [("depth 1", 2), ("depth 3", 4)])
def test_of_a_unets_ends_only_the_newest_are_kept(name: str, most: int) -> None:
    net, keeper = flows.LongSkips().eval(), CountingKeeper()
    net.down_blocks = flows.blocks(flows.SkipBlock, *range(8))
    net.up_blocks = flows.blocks(flows.SkipBlock, *range(8))
    call = Call.of(net, (torch.ones(1, 2, 4), torch.ones(1)), {})
    with torch.no_grad(), swapped(units_for(net, (name,)).values(), unit_members):
        found = compute_first_call(net, net.forward, call, Request((name,), None), keeper)
    assert list(found.kept) == [name]
    assert keeper.most == most


def test_shapes_tell_where_no_two_arguments_or_outputs_are_alike() -> None:
    net = flows.SwappedPair(1.0)
    hidden, text, t = torch.ones(1, 2, 4), torch.ones(1, 3, 4), torch.ones(1)
    call = Call.of(net, (hidden, text, t), {})
    assert shapes_tell(call, (text + 1, hidden + 1))
    assert shapes_tell(call, (None, hidden + 1))
    assert shapes_tell(call, (torch.ones(1, 5, 4), torch.ones(1, 5, 4)))
    assert not shapes_tell(call, (hidden + 1, hidden + 2))
    assert not shapes_tell(Call.of(net, (hidden, hidden + 1, t), {}), (hidden + 2,))
