"""Features in host memory: however far the host runs ahead of the device, two rings at most are on their way each way."""

from __future__ import annotations

from collections import deque

import pytest
import torch
from torch import Tensor

from diffcache.store import placement
from diffcache.store.placement import Feature, HostMemory

SITES, COPY, COMPUTE = 20, 5.0, 1.0


class Clock:
    """A device with a stream that computes and one that copies. The host takes no time, but where it waits."""

    def __init__(self) -> None:
        self.now = self.computing = self.copying = 0.0
        self.waited = 0

    def event(self, at: float) -> Done:
        return Done(self, at)


class Done:
    def __init__(self, clock: Clock, at: float) -> None:
        self.clock, self.at = clock, at

    def synchronize(self) -> None:
        self.clock.waited += self.at > self.clock.now
        self.clock.now = max(self.clock.now, self.at)


class SimulatedCopies:
    """Copies by the clock, and notes from when to when each copy takes memory of the device."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.spans: list[list[float]] = []  # allocated by the host now; freed when the device has used it
        self.open: dict[float, list[float]] = {}

    def to_device(self, tensor: Tensor) -> Tensor:
        clock = self.clock
        clock.copying = max(clock.copying, clock.now) + COPY
        self.spans.append([clock.now, float("inf")])
        self.open[float(tensor[0])] = self.spans[-1]
        return tensor.clone()

    def to_host(self, tensor: Tensor) -> Tensor:
        clock = self.clock
        clock.copying = max(clock.copying, clock.computing, clock.now) + COPY
        self.spans.append([clock.now, clock.copying])
        return tensor.clone()

    def wait(self) -> None:
        self.clock.computing = max(self.clock.computing, self.clock.copying)

    def used(self) -> Done:
        return self.clock.event(self.clock.computing)

    def copied(self) -> Done:
        return self.clock.event(self.clock.copying)

    def peak(self) -> int:
        """The most tensors that were on the device at once."""
        return max(sum(begin <= at < end for begin, end in self.spans) for at, _ in self.spans)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> SimulatedCopies:
    """What copies to and from every device."""
    simulated = SimulatedCopies(Clock())
    monkeypatch.setattr(placement, "copies_for", lambda device: simulated)
    return simulated


def filled() -> tuple[HostMemory, list[deque[Feature]]]:
    """A memory with a ring of one feature for each site, as a computed tick leaves it."""
    memory = HostMemory()
    rings = [deque([memory.put(Feature(0, (torch.full((2,), float(i)),)))]) for i in range(SITES)]
    memory.end_call()
    return memory, rings


def test_what_a_computed_tick_stores_leaves_the_device_as_fast_as_it_is_made(copies: SimulatedCopies) -> None:
    filled()
    assert copies.peak() <= 2
    assert copies.clock.waited >= SITES - 3


def test_a_reused_tick_has_two_rings_on_the_device_at_most(copies: SimulatedCopies) -> None:
    memory, rings = filled()
    for _ in range(3):
        copies.spans.clear()
        for i, ring in enumerate(rings):
            [feature] = memory.get(ring, 1)
            assert float(feature.tensors[0][0]) == i  # type: ignore[index]
            copies.clock.computing = max(copies.clock.computing, copies.clock.now) + COMPUTE
            copies.open.pop(i)[1] = copies.clock.computing
        memory.end_call()
    assert copies.peak() <= 2


def test_features_come_back_to_the_device_that_computed_them(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, asked = HostMemory(), list[torch.device]()
    monkeypatch.setattr(placement, "copies_for", asked.append)
    here = memory.put(Feature(0, (torch.ones(2),)))
    assert memory.get(deque([here]), 1)[0].tensors[0] is not None
    assert asked == [torch.device("cpu")]
