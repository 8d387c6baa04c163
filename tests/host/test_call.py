"""Arguments by name: the quick way gives what `inspect` gives, whatever a forward takes."""

from __future__ import annotations

import inspect
from itertools import chain, permutations
from typing import Any

import pytest
import torch
from torch import nn

from diffcache.host.call import Call


class NameOnly(nn.Module):
    def forward(self, a: Any, b: Any, c: Any = None, *, d: Any = 1) -> None: ...


class Rest(nn.Module):
    def forward(self, a: Any, b: Any = None, c: Any = None, **kwargs: Any) -> None: ...


class Plain(nn.Module):
    def forward(self, a: Any, b: Any = 2, c: Any = 3) -> None: ...


class Anything(nn.Module):
    def forward(self, *args: Any, **kwargs: Any) -> None: ...


def expected(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    try:
        bound = inspect.signature(cls.forward).bind(None, *args, **kwargs).arguments  # type: ignore[attr-defined]
    except TypeError:
        return {**{f"argument {i}": value for i, value in enumerate(args)}, **kwargs}
    return dict(list(bound.items())[1:])


def flat(arguments: dict[str, Any]) -> list[tuple[str, Any]]:
    """Paths and values, as `Call.leaves` has them: what `*args` and `**kwargs` take has no path of its own."""
    leaves: list[tuple[str, Any]] = []
    for name, value in arguments.items():
        if isinstance(value, dict):
            leaves += value.items()
        elif isinstance(value, tuple):
            leaves += [(f"argument {i}", item) for i, item in enumerate(value)]
        else:
            leaves.append((name, value))
    return leaves


@pytest.mark.parametrize("cls", [NameOnly, Rest, Plain, Anything])
def test_arguments_are_bound_as_inspect_binds_them(cls: type) -> None:
    for given in range(5):
        for names in chain.from_iterable(permutations("abcdx", count) for count in range(4)):
            args, kwargs = tuple(range(given)), dict.fromkeys(names, 7)
            call = Call.of(cls(), args, kwargs)
            assert list(call.leaves.items()) == flat(expected(cls, args, kwargs))


@pytest.mark.parametrize("cls", [NameOnly, Rest, Plain, Anything])
def test_what_is_picked_is_what_is_bound(cls: type) -> None:
    pick = Call.of(cls(), (0, (1, 2)), {"c": 3}).signature.picker(["a", "b.1", "c"])
    for args, kwargs in (((0, (1, 2)), {"c": 3}), ((0,), {"b": (1, 2)}), ((), {"c": 3, "b": (1, 2), "a": 0})):
        leaves = Call.of(cls(), args, kwargs).leaves
        assert pick(args, kwargs) == {path: leaves.get(path) for path in ("a", "b.1", "c")}


def test_plain_arguments_are_picked_however_they_are_given() -> None:
    pick = Call.of(Plain(), (1, 2), {}).signature.picker(["b", "c"])
    assert pick((0, 7), {"c": 8}) == pick((), {"c": 8, "b": 7, "a": 0}) == {"b": 7, "c": 8}
    assert pick((0, 7), {}) == {"b": 7, "c": None}


class TakesGroups(nn.Module):
    def forward(self, groups: Any) -> None:
        """Nothing."""


def test_a_list_inside_a_tuple_may_be_refilled() -> None:
    kept = [torch.ones(1)]
    call, fixed = (Call.of(TakesGroups(), (groups,), {}) for groups in ((torch.ones(1), kept), (kept[0],)))
    assert not call.refilled()
    kept[0] = torch.ones(1)
    assert call.refilled()
    assert not fixed.refilled()
