"""Branch: one guidance pass of one denoiser in one run."""

from typing import Any
from weakref import ReferenceType

from torch import Tensor

from diffcache.discovery.cuts import Cuts
from diffcache.host.call import Conditioning
from diffcache.store.rings import Store, StoreSetup
from diffcache.tokens.passes import TokenState

Identities = dict[str, tuple[ReferenceType[Tensor] | Any, int | None]]
"""Arguments by path. Of a tensor how often it had been written to; it is not kept alive, as a loop may make it anew at each step."""


class Branch:
    """One guidance pass: what tells it apart, and what it has stored.

    Args:
        name: in reports.
        context: the name that the pipeline gives it, or None.
        setup: of its stores.

    Attributes:
        conditioning: the arguments of its newest call that may tell it apart.
        fingerprint: of its newest call.
        changed: the fingerprint differs from that of the calls before, and nothing has been stored since.
        remade: arguments that the pipeline makes anew at every tick.
        given: its newest call's conditioning, in hand-written loops.
        kept: paths of those that were the same in its last two calls.
        moved: ticks at which one that had been kept was another one, by path.
        restless: paths of those that moved twice within `branches.OFTEN` ticks.
        emptied: how often what it had stored was dropped.
        stores: its past features by site.
        sources: paths of the denoiser's arguments that evolve with the latents, learned from its computed calls.
        cuts: where the denoiser can be cut, learned from its first computed call; None where nobody asked.
        tick: of its newest call.
        tokens: what it keeps to compute some tokens only; None where nobody asked.
    """

    def __init__(self, name: str, context: str | None, setup: StoreSetup) -> None:
        self.name = name
        self.context = context
        self.setup = setup
        self.conditioning: Conditioning = {}
        self.fingerprint: tuple[Any, ...] = ()
        self.changed = False
        self.remade: list[str] = []
        self.given: Identities = {}
        self.kept: set[str] = set()
        self.moved: dict[str, int] = {}
        self.restless: set[str] = set()
        self.emptied = 0
        self.stores: dict[str, Store] = {}
        self.sources: set[str] = set()
        self.cuts: Cuts | None = None
        self.tokens: TokenState | None = None
        self.tick = -1

    def store(self, site: str, lanes: int = 1) -> Store:
        """That of a site, made at its first use; another number of lanes than before empties it."""
        store = self.stores.get(site)
        if store is None:
            store = self.stores[site] = Store(self.setup)
        if len(store.rings) != lanes:
            store.empty(lanes)
        return store

    def recognise(self, fingerprint: tuple[Any, ...]) -> None:
        """Drops what is stored if the newest call looks otherwise than those before."""
        if self.fingerprint != fingerprint:
            # Not by what is stored: it may be dropped already, for another prompt.
            self.changed = bool(self.fingerprint)
            self.empty()
            self.fingerprint = fingerprint

    @property
    def stored(self) -> bool:
        """Whether anything is."""
        return any(len(store) for store in self.stores.values())

    def empty(self) -> None:
        """Drops what is stored."""
        self.emptied += 1
        for store in self.stores.values():
            store.clear()
        self.stores, self.sources, self.cuts, self.tokens = {}, set(), None, None

    def clear(self) -> None:
        """Drops everything."""
        self.empty()
        self.conditioning, self.remade, self.given, self.kept = {}, [], {}, set()
