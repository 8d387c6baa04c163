"""Where stored features lie: on the device that computed them, or in host memory."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from diffcache.kernels.quantize import Quantized
from diffcache.kernels.residual import Residual

Kept = Tensor | Quantized | Residual
"""What is stored of one tensor."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class Feature:
    """What is stored of one computed call.

    Attributes:
        tick: of the call.
        tensors: one for each tensor of the module's output, detached.
    """

    tick: int
    tensors: tuple[Kept, ...]


class DeviceMemory:
    """Features stay on the device that computed them."""

    on_host = False

    def put(self, feature: Feature) -> Feature:
        """Moves a feature to where it is stored."""
        return feature

    def get(self, ring: Sequence[Feature], count: int) -> list[Feature]:
        """The newest `count` features of a ring, on the device that computes."""
        return list(islice(ring, count))

    def end_call(self) -> None:
        """Is called after each call of the denoiser: drops copies that were made for it."""


class Event(Protocol):
    """A point in a stream's work."""

    def synchronize(self) -> None:
        """Holds the host back until the device has come there."""


class InFlight:
    """Holds the host back where it runs ahead of the device, so that what is under way takes a bounded amount of memory.

    Args:
        most: so much may be under way.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._events: deque[Event] = deque()

    def begins(self) -> None:
        """Something is about to be begun: waits until less than the most is under way."""
        while len(self._events) >= self._most:
            self._events.popleft().synchronize()

    def ends_at(self, event: Event) -> None:
        """It is done when the device has come to this event."""
        self._events.append(event)


class Copies:
    """Copying between a device and host memory, both ways, on a CUDA stream of its own.

    Args:
        device: a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def to_device(self, tensor: Tensor) -> Tensor:
        """A copy on the device, which may still go on: `wait` for it."""
        with torch.cuda.stream(self.stream):
            copied = tensor.to(self.device, non_blocking=True)
        copied.record_stream(torch.cuda.current_stream(self.device))
        return copied

    def to_host(self, tensor: Tensor) -> Tensor:
        """A copy in pinned host memory, which may still go on."""
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            pinned = torch.empty_like(tensor, device="cpu", pin_memory=True)
            pinned.copy_(tensor, non_blocking=True)
        tensor.record_stream(self.stream)
        return pinned

    def wait(self) -> None:
        """What the device computes from now on comes after what has been copied."""
        torch.cuda.current_stream(self.device).wait_stream(self.stream)

    def used(self) -> Event:
        """When the device has computed what it has been given so far."""
        event: Event = torch.cuda.current_stream(self.device).record_event()
        return event

    def copied(self) -> Event:
        """When all copies that have been begun are done."""
        event: Event = self.stream.record_event()
        return event


class HostMemory(DeviceMemory):
    """Features are stored in host memory. On CUDA it is pinned, and a stream of its own copies in both directions.

    Reading a ring also starts to copy the features of the next ring: the one that was read after it in the call before. So
    they arrive while the site is being reused. Between calls no feature is on the device. At most two rings are on their way
    in each direction: a host that runs ahead waits.
    """

    on_host = True

    def __init__(self) -> None:
        self._copies: dict[torch.device, Copies | None] = {}
        self._homes: WeakKeyDictionary[Feature, torch.device] = (
            WeakKeyDictionary()
        )  # the device that computed it
        self._arriving, self._leaving = InFlight(1), InFlight(2)  # beside what is prefetched
        self._next: dict[
            int, tuple[Sequence[Feature], int]
        ] = {}  # by id of a ring: the ring read after it, how much
        self._last: Sequence[Feature] | None = None  # the ring that was read last in this call
        self._prefetched: WeakKeyDictionary[Feature, Feature] = WeakKeyDictionary()

    def put(self, feature: Feature) -> Feature:
        home = _device_of(feature)
        copies = self._copies_of(home)
        if copies is None:
            stored = _map(Tensor.cpu, feature)
        else:
            self._leaving.begins()
            stored = _map(copies.to_host, feature)
            self._leaving.ends_at(copies.copied())
        self._homes[stored] = home
        return stored

    def get(self, ring: Sequence[Feature], count: int) -> list[Feature]:
        copies = self._copies_of(self._home_of(ring[0])) if ring else None
        if copies is not None and self._last is not None:
            self._arriving.ends_at(copies.used())  # of the ring that was read before this one
            self._arriving.begins()
        found = [self._prefetched.get(feature) or self._to_device(feature) for feature in islice(ring, count)]
        if copies is not None:
            copies.wait()
        if self._last is not None and self._last is not ring:
            self._next[id(self._last)] = ring, count
        self._last = ring
        following, number = self._next.get(id(ring), ((), 0))
        self._prefetched = WeakKeyDictionary()
        self._prefetched.update({new: self._to_device(new) for new in islice(following, number)})
        return found

    def end_call(self) -> None:
        self._last = None
        self._prefetched.clear()

    def _to_device(self, feature: Feature) -> Feature:
        """A copy on the device that computed it; the copying may still go on."""
        home = self._home_of(feature)
        copies = self._copies_of(home)
        return _map(lambda tensor: tensor.to(home) if copies is None else copies.to_device(tensor), feature)

    def _home_of(self, feature: Feature) -> torch.device:
        return self._homes.get(feature) or _device_of(feature)

    def _copies_of(self, device: torch.device) -> Copies | None:
        if device not in self._copies:
            self._copies[device] = copies_for(device)
        return self._copies[device]


def copies_for(device: torch.device) -> Copies | None:
    """What copies to and from a device; None where there is no stream to do it on."""
    return Copies(device) if device.type == "cuda" else None


def _device_of(feature: Feature) -> torch.device:
    """That of its first tensor: all tensors of a site's output lie on one device."""
    leaves: list[Tensor] = pytree.tree_leaves(feature.tensors)
    return leaves[0].device


def _map(function: Callable[[Tensor], Tensor], feature: Feature) -> Feature:
    return Feature(feature.tick, pytree.tree_map(function, feature.tensors))
