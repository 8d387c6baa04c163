"""What the first call of a guidance pass keeps at once, counted in a dry run, in each format."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import finalize

from torch import Tensor
from torch.utils import _pytree as pytree

from diffcache.discovery.candidates import Arguments
from diffcache.engine.branch import Branch
from diffcache.engine.execution import Parts
from diffcache.engine.first_pass import store_site
from diffcache.host.call import Call
from diffcache.planning.footprint import rings_of
from diffcache.schedulers.steps import Step
from diffcache.store.formats import DTYPES
from diffcache.store.rings import Store

FORMATS: tuple[str | None, ...] = (None, *DTYPES)


@dataclass(eq=False, slots=True, weakref_slot=True)
class CountedSite:
    """What may be a site, on the meta device.

    Attributes:
        first: the call of its first unit.
        output: what its last unit returned.
    """

    first: Call
    output: Any


class FirstCallBytes:
    """Keeps what may be sites without content, and counts their bytes. What is dropped counts no longer.

    Args:
        parts: what the dry run's execution works with.
        branch: whose first call it is.

    Attributes:
        most: most bytes at once, by format.
        most_waiting: most bytes that waited to be kept, which are in no format.
    """

    def __init__(self, parts: Parts, branch: Branch) -> None:
        self.most = dict.fromkeys(FORMATS, 0)
        self.most_waiting = 0
        self._now = dict.fromkeys(FORMATS, 0)
        self._parts, self._branch = parts, branch

    def keep(self, kind: str, first: Call, output: Any, continues: Mapping[int, str]) -> CountedSite:
        """See `Keeper`."""
        first, output = without_content(first, output)
        store = Store(self._branch.setup)
        store.empty(1)
        store_site(self._parts, store, Step(0, None, "", kind=kind), first, output, continues)
        rings = rings_of(store, "", "", "")
        sizes = {dtype: sum(ring.bytes_in(dtype) for ring in rings) for dtype in FORMATS}
        site = CountedSite(first, output)
        _add(self._now, sizes, 1)
        finalize(site, _add, self._now, sizes, -1).atexit = False  # holds no more than these two dicts
        return site

    def keep_again(
        self, like: CountedSite, kind: str, call: Arguments, output: Any, continues: Mapping[int, str]
    ) -> CountedSite:
        """See `Keeper`."""
        return self.keep(kind, Call.of(*call), output, continues)

    def waiting(self, nbytes: Callable[[], int]) -> None:
        """See `Keeper`."""
        now = nbytes()
        self.most_waiting = max(self.most_waiting, now)
        self.most = {dtype: max(most, self._now[dtype] + now) for dtype, most in self.most.items()}


def _add(total: dict[str | None, int], sizes: Mapping[str | None, int], sign: int) -> None:
    for dtype, size in sizes.items():
        total[dtype] += sign * size


def without_content(call: Call, output: Any) -> tuple[Call, Any]:
    """A call and its output on the meta device; what was one tensor in both still is."""
    known: dict[int, Tensor] = {}

    def meta(tensor: Tensor) -> Tensor:
        return known.setdefault(id(tensor), tensor.detach().to("meta"))

    return call.mapped(meta), pytree.tree_map_only(Tensor, meta, output)
