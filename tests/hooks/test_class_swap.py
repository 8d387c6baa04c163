"""A swapped instance runs the override and looks like its own class; its copies and every other instance are plain."""

from __future__ import annotations

import copy
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from diffcache.hooks.class_swap import base_class, is_swapped, swap_in, swap_out


class Plain:
    def __init__(self) -> None:
        self.number = 3

    def answer(self) -> str:
        return f"plain {self.number}"


class Reduced(Plain):
    """Says itself how it is copied."""

    def __reduce__(self) -> Any:
        return Reduced, ()


class Abstract(ABC):
    @abstractmethod
    def answer(self) -> str: ...


class Concrete(Abstract):
    """Its metaclass is not `type`."""

    def answer(self) -> str:
        return "plain 3"


class Layer(nn.Linear):
    def __init__(self) -> None:
        super().__init__(1, 1)

    def answer(self) -> str:
        return "plain 3"


def loud(base: type) -> dict[str, Any]:
    return {"answer": lambda self: base.answer(self).upper()}


def doubled(base: type) -> dict[str, Any]:
    return {"answer": lambda self: 2 * base.answer(self)}


each_class = pytest.mark.parametrize("cls", [Plain, Reduced, Concrete, Layer])


@each_class
def test_the_override_runs_and_the_class_looks_the_same(cls: type) -> None:
    instance, before = cls(), dict(vars(cls()))
    assert swap_in(instance, loud)
    assert instance.answer() == "PLAIN 3"
    assert cls().answer() == "plain 3"
    swapped_class = type(instance)
    assert is_swapped(instance)
    assert swapped_class is not cls
    assert swapped_class == cls
    assert swapped_class in {cls}
    assert isinstance(instance, cls)
    assert base_class(swapped_class) is cls
    assert (swapped_class.__name__, swapped_class.__qualname__, swapped_class.__module__) == (
        cls.__name__,
        cls.__qualname__,
        cls.__module__,
    )
    assert vars(instance).keys() == before.keys()
    swap_out(instance)
    assert type(instance) is cls
    assert instance.answer() == "plain 3"


def test_classes_of_different_bases_differ() -> None:
    one, other = Plain(), Reduced()
    swap_in(one, loud), swap_in(other, loud)
    assert type(one) != type(other)
    assert type(one) != Reduced


def test_a_class_is_made_once_for_each_base_and_override() -> None:
    one, same, other = Plain(), Plain(), Plain()
    swap_in(one, loud), swap_in(same, loud), swap_in(other, doubled)
    assert type(one) is type(same)
    assert type(one) is not type(other)
    assert other.answer() == "plain 3plain 3"


def test_the_first_swap_stays() -> None:
    instance = Plain()
    swap_in(instance, loud)
    assert not swap_in(instance, doubled)
    assert instance.answer() == "PLAIN 3"


@each_class
@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, *(lambda x, p=p: pickle.loads(pickle.dumps(x, p)) for p in range(2, 6))],
    ids=["copy", "deepcopy", *(f"pickle {p}" for p in range(2, 6))],
)
def test_copies_are_plain(cls: type, duplicate: Callable[[Any], Any]) -> None:
    instance = cls()
    swap_in(instance, loud)
    other = duplicate(instance)
    assert type(other) is cls
    assert other.answer() == "plain 3"
    assert vars(other).keys() == vars(instance).keys()
    assert is_swapped(instance)


def test_what_has_no_class_to_swap_is_refused() -> None:
    with pytest.raises(TypeError):
        swap_in(3, lambda base: {})
    swap_out(3)
