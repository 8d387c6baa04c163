from __future__ import annotations

import weakref

import torch
from diffusers.hooks import HookRegistry, ModelHook
from torch import nn

from diffcache.host.kept_with import KeptWith
from diffcache.host.structure import structure_of


def test_the_value_that_was_used_longest_ago_is_dropped_first() -> None:
    kept, owner = KeptWith[int](2), nn.Identity()
    kept.put(owner, ["a"], 1)  # keys need not be hashable
    kept.put(owner, ["b"], 2)
    assert kept.get(owner, ["a"]) == 1
    kept.put(owner, ["c"], 3)
    assert [kept.get(owner, [key]) for key in "abc"] == [1, None, 3]
    kept.put(owner, ["c"], 4)
    kept.drop(owner, ["a"])
    assert [kept.get(owner, [key]) for key in "ac"] == [None, 4]
    assert kept.get(nn.Identity(), ["c"]) is None


def test_values_go_with_their_owner() -> None:
    class Value:
        pass

    kept, owner, value = KeptWith[Value](2), nn.Identity(), Value()
    kept.put(owner, "a", value)
    gone = weakref.ref(value)
    del owner, value
    assert gone() is None


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()))


def test_a_structure_stands_still_until_something_is_built_otherwise() -> None:
    one = net()
    found = [structure_of(one)]
    with torch.no_grad():
        one[0].weight.add_(1)
        one[0].weight.data = torch.zeros(2, 2)
    assert structure_of(one) == found[0]
    one[1][0] = nn.Linear(2, 2)
    found.append(structure_of(one))
    one.mode = "wide"  # type: ignore[assignment]
    found.append(structure_of(one))
    one[1][1].processor = nn.Identity  # type: ignore[assignment]
    found.append(structure_of(one))
    one[1][1].forward = one[1][1].extra_repr  # type: ignore[method-assign]
    found.append(structure_of(one))
    one[1][0].weight = nn.Parameter(Other(torch.zeros(2, 2)), requires_grad=False)
    found.append(structure_of(one))
    assert len(set(found)) == len(found)
    assert structure_of(one) == found[-1]


def test_a_structure_tells_where_a_module_is_and_which_one_is_compiled_or_hooked() -> None:
    pair = nn.Sequential(nn.Sequential(nn.ReLU(), nn.ReLU()), nn.Sequential(nn.ReLU()))
    found = [structure_of(pair)]
    pair[1].insert(0, pair[0].pop(1))
    found.append(structure_of(pair))
    for leaf in (pair[0][0], pair[1][0]):
        leaf.compile()
        found.append(structure_of(pair))
        leaf._compiled_call_impl = None
        registry = HookRegistry.check_if_exists_or_initialize(leaf)
        registry.register_hook(ModelHook(), "hook")
        found.append(structure_of(pair))
        registry.hooks["hook"] = OtherHook()  # a hook may come back with the id of the forward before it
        found.append(structure_of(pair))
        registry.remove_hook("hook")
    assert len(set(found)) == len(found)


class OtherHook(ModelHook):
    """A hook of another class."""


class Other(torch.Tensor):
    """A tensor of another class, as quantised weights are."""
