"""What is kept of a first call is dropped as soon as it cannot be a site any more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakSet

import pytest
import torch
from support import flows
from torch import Tensor, nn

from diffcache.discovery.candidates import Arguments, shapes_tell
from diffcache.discovery.first_call import compute_first_call
from diffcache.discovery.site_names import units_for
from diffcache.discovery.wanted import Request
from diffcache.hooks.attachments import swapped
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

    def waiting(self, nbytes: Callable[[], int]) -> None:
        pass


class ContinuesKeeper:
    """Keeps which arguments outputs were said to continue."""

    def keep(
        self, kind: str, first: Call, output: Any, continues: Mapping[int, str]
    ) -> tuple[bool, dict[int, str]]:
        return True, dict(continues)

    def keep_again(
        self,
        like: tuple[bool, dict[int, str]],
        kind: str,
        call: Arguments,
        output: Any,
        continues: Mapping[int, str],
    ) -> tuple[bool, dict[int, str]]:
        assert like[1] == continues
        return False, dict(continues)

    def waiting(self, nbytes: Callable[[], int]) -> None:
        pass


class Pair(flows.Block):
    """Two streams of one shape."""

    def forward(self, h: Tensor, text: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return h + self.weight * t, text + self.weight


class LaterText(nn.Module):
    """Only the fifth block and those after it are given the text of the block before them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = flows.blocks(Pair, *range(8))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h, text = 2 * x, torch.ones(1, 2, 4)
        for i, block in enumerate(self.blocks):
            h, made = block(h, text, t)
            text = made if i >= 3 else torch.ones(1, 2, 4)
        return h + text


def test_an_equal_block_is_kept_anew_where_it_is_known_to_continue_more() -> None:
    net = LaterText().eval()
    call = Call.of(net, (torch.ones(1, 2, 4), torch.ones(1)), {})
    with torch.no_grad(), swapped(units_for(net, ("block",)).values(), unit_members):
        kept = compute_first_call(net, net.forward, call, Request(("block",), None), ContinuesKeeper()).kept
    one, both = {0: "h"}, {0: "h", 1: "text"}
    assert [kept[f"blocks.{i}"] for i in range(3)] == [(True, one), (False, one), (False, one)]
    assert [kept[f"blocks.{i}"] for i in range(4, 8)] == [(True, both)] * 4


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
