"""One registry of what is accelerated and of what is paused, for targets of every kind."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

import pytest

from diffcache.hooks.attachments import (
    PAUSED,
    Attachment,
    attachment_of,
    forget,
    is_paused,
    kept,
    own_attachment,
    paused,
    register,
    swapped,
    users_of,
)
from diffcache.hooks.class_swap import is_swapped, swap_in
from diffcache.schedulers.errors import TargetError


class Thing:
    pass


@dataclass(eq=False)
class Named(Attachment):
    """An attachment whose report is its method's name."""

    def report(self) -> Any:
        return self.config


def attached(target: object, *parts: object, name: str = "method") -> Named:
    """Registers a target, with some of its parts swapped."""
    attachment = Named(name)
    for part in parts:
        swap_in(part, lambda base: {})
        attachment.swapped.add(part)
    register(target, attachment)
    return attachment


def test_the_newest_attachment_is_the_targets_and_its_report_is_asked_for() -> None:
    target = Thing()
    for name in ("one", "two"):
        attachment = attached(target, name=name)
        assert own_attachment(target) is attachment_of(target) is attachment
        assert attachment.report() == name
    forget(target)
    assert own_attachment(target) is None
    forget(target)


def test_a_part_is_reached_through_the_one_target_that_uses_it() -> None:
    part, one, two = Thing(), Thing(), Thing()
    first = attached(one, part)
    assert own_attachment(part) is None
    assert attachment_of(part) is first
    second = attached(two, part)
    assert users_of(part) == [first, second]
    assert attachment_of(part) is None
    own = attached(part, name="its own")
    assert attachment_of(part) is own
    for thing in (one, two, part):
        forget(thing)


def test_a_part_gets_its_class_back_with_the_last_target_that_uses_it() -> None:
    part, other, one, two = Thing(), Thing(), Thing(), Thing()
    attached(one, part, other)
    attached(two, part)
    attached(one, part)  # another method, which needs less
    assert is_swapped(part)
    assert not is_swapped(other)
    forget(one)
    assert is_swapped(part)
    forget(two)
    assert type(part) is Thing


def test_a_swap_for_a_while_ends_with_an_error_too_and_leaves_what_others_need() -> None:
    fresh, needed, target = Thing(), Thing(), Thing()
    attached(target, needed)

    def fail() -> None:
        with swapped([fresh, needed], lambda base: {}):
            assert is_swapped(fresh)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert type(fresh) is Thing
    assert is_swapped(needed)


def test_the_last_of_two_that_overlap_gives_the_class_back() -> None:
    thing = Thing()
    first, second = (swapped([thing], lambda base: {}) for _ in range(2))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert is_swapped(thing)
    second.__exit__(None, None, None)
    assert type(thing) is Thing


def test_what_a_running_call_needs_keeps_its_class_until_the_call_is_over() -> None:
    part, target = Thing(), Thing()
    with kept(attached(target, part).swapped):
        attached(target)  # another method, which needs nothing
        forget(target)
        assert is_swapped(part)
    assert type(part) is Thing


def test_an_attachment_keeps_nothing_alive() -> None:
    target, part = Thing(), Thing()
    alive = [weakref.ref(thing) for thing in (attached(target, part), target, part)]
    del target, part
    gc.collect()
    assert [ref() for ref in alive] == [None] * 3


@pytest.mark.parametrize(
    "target", [object(), None, "text", {}, [], 3], ids=lambda target: type(target).__name__
)
def test_what_cannot_be_remembered_is_not_accelerated(target: object) -> None:
    assert attachment_of(target) is None
    assert users_of(target) == []
    forget(target)
    with pytest.raises(TargetError, match="nothing to pause"), paused(target):
        pass


def test_a_pause_is_of_its_target_and_its_thread_and_ends() -> None:
    one, two = Thing(), Thing()
    attached(one)
    attached(two)
    with paused(one):
        assert is_paused(one, two)
        assert not is_paused(two)
        with paused(two), paused(one):
            assert is_paused(two)
        assert not is_paused(two)
        assert is_paused(one)
        with ThreadPoolExecutor() as pool:
            assert not pool.submit(PAUSED.get).result()
    assert not PAUSED.get()
    with pytest.raises(RuntimeError), paused(one):
        raise RuntimeError
    assert not is_paused(one)


def test_pauses_may_end_in_another_order() -> None:
    one, two = Thing(), Thing()
    attached(one), attached(two)
    first, second = paused(one), paused(two)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert is_paused(two)
    assert not is_paused(one)
    second.__exit__(None, None, None)
    assert not is_paused(two)


def test_a_pause_may_end_in_another_context() -> None:
    thing = Thing()
    attached(thing)
    pause = paused(thing)
    copy_context().run(pause.__enter__)
    pause.__exit__(None, None, None)
    assert not is_paused(thing)
