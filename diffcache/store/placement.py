"""Where stored features lie: on the device that computed them, or in host memory."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
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


class HostMemory(DeviceMemory):
    """Features are stored in host memory. On CUDA it is pinned, and a stream of its own copies in both directions.

    Reading a ring also starts to copy the features of the next ring: the one that was read after it in the call before. So
    they arrive while the site is being reused. Between calls no feature is on the device.

    Args:
        device: the device that computes.
    """

    on_host = True

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._next: dict[
            int, tuple[Sequence[Feature], int]
        ] = {}  # by id of a ring: the ring read after it, how much
        self._last: Sequence[Feature] | None = None  # the ring that was read last in this call
        self._prefetched: WeakKeyDictionary[Feature, Feature] = WeakKeyDictionary()

    def put(self, feature: Feature) -> Feature:
        return _map(self._tensor_to_host, feature)

    def get(self, ring: Sequence[Feature], count: int) -> list[Feature]:
        found = [self._prefetched.get(feature) or self._to_device(feature) for feature in islice(ring, count)]
        if self._stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._stream)
        if self._last is not None and self._last is not ring:
            self._next[id(self._last)] = ring, count
        self._last = ring
        following, number = self._next.get(id(ring), ((), 0))
        self._prefetched = WeakKeyDictionary({new: self._to_device(new) for new in islice(following, number)})
        return found

    def end_call(self) -> None:
        self._last = None
        self._prefetched.clear()

    def _to_device(self, feature: Feature) -> Feature:
        """A copy on the device; the copying may still go on."""
        return _map(self._tensor_to_device, feature)

    def _tensor_to_device(self, tensor: Tensor) -> Tensor:
        with self._on_stream():
            copied = tensor.to(self.device, non_blocking=True)
        if self._stream is not None:
            copied.record_stream(torch.cuda.current_stream(self.device))
        return copied

    def _tensor_to_host(self, tensor: Tensor) -> Tensor:
        if self._stream is None:
            return tensor.cpu()
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with self._on_stream():
            pinned = torch.empty_like(tensor, device="cpu", pin_memory=True)
            pinned.copy_(tensor, non_blocking=True)
        tensor.record_stream(self._stream)
        return pinned

    def _on_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


def _map(function: Callable[[Tensor], Tensor], feature: Feature) -> Feature:
    return Feature(feature.tick, pytree.tree_map(function, feature.tensors))
