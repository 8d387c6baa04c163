"""The footprint of a run: which features it holds when it holds most, and how many bytes that is in any format."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch

from diffcache.engine.engine import Engine
from diffcache.reports.records import bytes_of
from diffcache.store.formats import Ring, bytes_in_ring, format_of, values_of
from diffcache.store.rings import Store

Form = tuple[tuple[int, ...], torch.dtype, bool]
"""Shape and dtype of an output, and whether it is stored as a residual."""


@dataclass(frozen=True)
class HeldRing:
    """The features of one site, branch and lane, by shape alone.

    Attributes:
        denoiser, site, branch: whose.
        forms: of the output's tensors.
        depth: features that the ring can hold.
        count: features that it holds.
    """

    denoiser: str
    site: str
    branch: str
    forms: tuple[Form, ...]
    depth: int
    count: int

    def bytes_in(self, cache_dtype: str | None) -> int:
        """In a format by name (see `cache_dtype`)."""
        return _bytes_in(self.forms, self.depth, self.count, cache_dtype)


@dataclass(frozen=True)
class Footprint:
    """Everything that is held at once.

    Attributes:
        features: in stores.
        others: bytes of signals, conditioning and the like.
    """

    features: tuple[HeldRing, ...] = ()
    others: int = 0

    def bytes_in(self, cache_dtype: str | None) -> int:
        return self.others + sum(ring.bytes_in(cache_dtype) for ring in self.features)


@dataclass(frozen=True)
class FirstCallNeed:
    """What the first call of a guidance pass needs beyond a plain call, at most.

    Attributes:
        before: what is held when it begins.
        most: most bytes of its own at once, by format; part of them may be dropped before the call is over.
        waiting: most of these that are in no format yet, and on the device that computes.
    """

    before: Footprint
    most: Mapping[str | None, int]
    waiting: int

    def bytes_in(self, cache_dtype: str | None) -> int:
        """In a format by name, on the device that computes."""
        return self.before.bytes_in(cache_dtype) + self.most[cache_dtype]

    @property
    def beside_host(self) -> int:
        """Bytes on the device that computes, where features are in host memory."""
        return self.before.others + self.waiting


def held_by(engines: Iterable[Engine]) -> Footprint:
    """By engines now."""
    engines = list(engines)
    features = [
        ring
        for engine in engines
        for branch in engine.branches.known
        for site, store in branch.stores.items()
        for ring in rings_of(store, engine.name, site, branch.name)
    ]
    return Footprint(tuple(features), sum(bytes_of(engine.tensors()) for engine in engines))


def rings_of(store: Store, denoiser: str, site: str, branch: str) -> list[HeldRing]:
    """What a store holds of a site in a branch of a denoiser."""
    return [
        HeldRing(
            denoiser,
            site,
            branch,
            tuple(
                (tuple(values_of(kept).shape), *kind)
                for kept, kind in zip(ring[0].tensors, store.kinds(), strict=True)
            ),
            store.setup.depth,
            len(ring),
        )
        for ring in store.rings
        if ring
    ]


@lru_cache(maxsize=1024)
def _bytes_in(forms: tuple[Form, ...], depth: int, count: int, cache_dtype: str | None) -> int:
    """Fills a ring of that format, without content."""
    ring: Ring = deque(maxlen=depth)
    blanks = [(torch.empty(shape, dtype=dtype, device="meta"), residual) for shape, dtype, residual in forms]
    for tick in range(count):
        format_of(cache_dtype).push(
            ring, tick, [(blank, blank if residual else None) for blank, residual in blanks]
        )
    return bytes_in_ring(ring)
