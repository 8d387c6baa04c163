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


@dataclass(eq=False, slots=True, weakref_slot=True)
class Feature:
    """What one computed call left behind: something detached for each tensor of the module's output."""

    tick: int
    tensors: tuple[Kept, ...]


class DeviceMemory:
    """Features stay on the device that computed them."""

    on_host = False

    def put(self, feature: Feature) -> Feature:
        """Moves a feature to where it is to lie."""
        return feature

    def get(self, ring: Sequence[Feature], count: int) -> list[Feature]:
        """The newest `count` features of a ring, on the device that computes."""
        return list(islice(ring, count))

    def rest(self) -> None:
        """A denoiser call is over: nothing more is read in it."""


class HostMemory(DeviceMemory):
    """Features lie in host memory. On CUDA it is pinned, and a stream of its own copies to and from it.

    Reading a ring also starts to copy the ring that was read after it in the call before. So the next site's features are
    on their way while a site is reused. Between calls no feature is on the device.

    Args:
        device: the device that computes.
    """

    on_host = True

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._carrier = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._after: dict[int, tuple[Sequence[Feature], int]] = {}
        self._last: Sequence[Feature] | None = None
        self._ahead: WeakKeyDictionary[Feature, Feature] = WeakKeyDictionary()

    def put(self, feature: Feature) -> Feature:
        return _map(self._away, feature)

    def get(self, ring: Sequence[Feature], count: int) -> list[Feature]:
        here = [self._ahead.get(feature) or self._back(feature) for feature in islice(ring, count)]
        if self._carrier is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._carrier)
        if self._last is not None and self._last is not ring:
            self._after[id(self._last)] = ring, count
        self._last = ring
        following, number = self._after.get(id(ring), ((), 0))
        self._ahead = WeakKeyDictionary({new: self._back(new) for new in islice(following, number)})
        return here

    def rest(self) -> None:
        self._last = None
        self._ahead.clear()

    def _back(self, feature: Feature) -> Feature:
        """The feature on the device, or on its way there."""
        return _map(self._carried, feature)

    def _carried(self, tensor: Tensor) -> Tensor:
        with self._carrying():
            here = tensor.to(self.device, non_blocking=True)
        if self._carrier is not None:
            here.record_stream(torch.cuda.current_stream(self.device))
        return here

    def _away(self, tensor: Tensor) -> Tensor:
        if self._carrier is None:
            return tensor.cpu()
        self._carrier.wait_stream(torch.cuda.current_stream(self.device))
        with self._carrying():
            pinned = torch.empty_like(tensor, device="cpu", pin_memory=True)
            pinned.copy_(tensor, non_blocking=True)
        tensor.record_stream(self._carrier)
        return pinned

    def _carrying(self) -> AbstractContextManager[object]:
        return nullcontext() if self._carrier is None else torch.cuda.stream(self._carrier)


def _map(function: Callable[[Tensor], Tensor], feature: Feature) -> Feature:
    return Feature(feature.tick, pytree.tree_map(function, feature.tensors))
