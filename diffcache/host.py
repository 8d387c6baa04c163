"""Features in host memory: on CUDA it is pinned, and a stream of its own carries them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from diffcache.formats import Feature, Format, Kept


class HostFormat(Format):
    """Features lie in host memory. One that is read brings along the one that was read after it in the last call.

    So while a site is reused, the next one's features are on their way; between calls none is on the device.

    Args:
        dtype: as for `Format`.
        device: that computes them.
        memory: where they lie.
    """

    on_host = True

    def __init__(
        self, dtype: torch.dtype | None, device: torch.device, memory: torch.device | str = "cpu"
    ) -> None:
        super().__init__(dtype)
        self.device = device
        self.memory = torch.device(memory)
        self._carrier = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._after: dict[int, tuple[Sequence[Feature], int]] = {}
        self._last: Sequence[Feature] | None = None
        self._ahead: WeakKeyDictionary[Feature, Feature] = WeakKeyDictionary()

    def keep(self, output: Tensor, base: Tensor | None) -> Kept:
        return _map(self._away, super().keep(output, base))

    def read(self, ring: Sequence[Feature], depth: int) -> list[list[Kept]]:
        here = [self._ahead.get(feature) or self._back(feature) for feature in islice(ring, depth)]
        if self._carrier is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._carrier)
        if self._last is not None:
            self._after[id(self._last)] = ring, depth
        self._last = ring
        following, count = self._after.get(id(ring), ((), 0))
        self._ahead = WeakKeyDictionary(
            {feature: self._back(feature) for feature in islice(following, count)}
        )
        return super().read(here, depth)

    def rest(self) -> None:
        self._last = None
        self._ahead.clear()

    def _back(self, feature: Feature) -> Feature:
        """The feature on the device, or on its way there."""
        return Feature(feature.tick, tuple(_map(self._carried, kept) for kept in feature.tensors))

    def _carried(self, tensor: Tensor) -> Tensor:
        with self._carrying():
            here = tensor.to(self.device, non_blocking=True)
        if self._carrier is not None:
            here.record_stream(torch.cuda.current_stream(self.device))
        return here

    def _away(self, tensor: Tensor) -> Tensor:
        if self._carrier is None:
            return tensor.to(self.memory)
        self._carrier.wait_stream(torch.cuda.current_stream(self.device))
        with self._carrying():
            pinned = torch.empty_like(tensor, device=self.memory, pin_memory=True)
            pinned.copy_(tensor, non_blocking=True)
        tensor.record_stream(self._carrier)
        return pinned

    def _carrying(self) -> AbstractContextManager[object]:
        return nullcontext() if self._carrier is None else torch.cuda.stream(self._carrier)


def _map(function: Callable[[Tensor], Tensor], kept: Kept) -> Kept:
    mapped: Kept = pytree.tree_map(function, kept)
    return mapped
