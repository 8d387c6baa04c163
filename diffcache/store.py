"""The store: a ring of past features for each branch (and sample) of a site."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Feature:
    """What one computed call left behind: one detached tensor for each tensor of the module's output."""

    tick: int
    tensors: tuple[Tensor, ...]


class Ring:
    """The newest `depth` features, newest first."""

    def __init__(self, depth: int) -> None:
        self.features: deque[Feature] = deque(maxlen=depth)

    @property
    def last_computed(self) -> int | None:
        """Tick of the newest feature."""
        return self.features[0].tick if self.features else None

    def push(self, feature: Feature) -> None:
        self.features.appendleft(feature)

    def clear(self) -> None:
        self.features.clear()

    def tensors(self) -> Iterator[Tensor]:
        for feature in self.features:
            yield from feature.tensors
