"""Which guidance pass a denoiser call belongs to.

The name that the pipeline gives it (`cache_context`) decides where there is one; else its conditioning arguments;
else its order inside the tick.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from diffcache.discovery.cuts import Anatomy
from diffcache.host.call import Call, version_of
from diffcache.store.formats import Format
from diffcache.store.rings import Store

MAX_BRANCHES = 8
"""More calls than this in one tick are no guidance passes: nothing of theirs is reused."""

FORGET_AFTER = 2
"""A branch that stays away for more ticks than this is forgotten, and computes when it comes back."""

TIMES = {"t", "r", "sigma", "sigmas", "noise_level"}
"""Names of time arguments that do not say "time"."""

Conditioning = dict[str, "Argument"]


class Branch:
    """One guidance pass: what tells it apart, and what it has stored.

    Attributes:
        conditioning: the arguments of its newest call that may tell it apart.
        fingerprint: of its newest call; `changed` when it differs from that of what had been stored.
        stores: its past features by site.
        sources: paths of the denoiser's arguments that evolve with the latents, learned from its computed calls.
        anatomy: where the denoiser can be cut, learned from its first computed call; None where nobody asked.
        tick: of its newest call.
    """

    def __init__(self, name: str, context: str | None, depth: int, format: Format) -> None:
        self.name = name
        self.context = context
        self.conditioning: Conditioning = {}
        self.fingerprint: tuple[Any, ...] = ()
        self.changed = False
        self.remade: list[str] = []
        self.depth = depth
        self.format = format
        self.stores: dict[str, Store] = {}
        self.sources: set[str] = set()
        self.anatomy: Anatomy | None = None
        self.tick = -1

    def store(self, site: str, lanes: int = 1) -> Store:
        """That of a site, made at its first use; another number of lanes than before empties it."""
        store = self.stores.get(site)
        if store is None:
            store = self.stores[site] = Store(self.depth, self.format)
        if len(store.rings) != lanes:
            store.seat(lanes)
        return store

    def drop_all_but(self, sites: set[str]) -> None:
        """Forgets what turned out to be no site."""
        self.stores = {site: store for site, store in self.stores.items() if site in sites}

    @property
    def stored(self) -> bool:
        return any(len(store) for store in self.stores.values())

    @property
    def nbytes(self) -> int:
        """Of what is stored."""
        return sum([store.nbytes for store in self.stores.values()])

    def clear(self) -> None:
        self.empty()
        self.conditioning, self.remade = {}, []

    def kept(self) -> Iterator[Tensor]:
        """Tensors that pipelines make anew at every tick: nobody else has last tick's."""
        arguments = (self.conditioning[path].value for path in self.remade if path in self.conditioning)
        return (value for value in arguments if isinstance(value, Tensor))

    def empty(self) -> None:
        """Drops what is stored."""
        for store in self.stores.values():
            store.clear()
        self.stores, self.sources, self.anatomy = {}, set(), None


class Branches:
    """The branches of one denoiser in one run; `tick` is that of its newest call.

    Args:
        depth: how many past features each is to store.
        format: and how.
    """

    def __init__(self, depth: int, format: Format) -> None:
        self.depth = depth
        self.format = format
        self.known: list[Branch] = []
        self.habits = Habits()
        self._before: list[Branch] = []
        self._now: list[Branch] = []
        self.tick = -1

    @property
    def calls_in_tick(self) -> int:
        return len(self._now)

    def begin_tick(self, tick: int) -> None:
        """Must precede the first `identify` of a tick; repeating it does nothing."""
        if tick == self.tick:
            return
        self.tick, self._before, self._now = tick, self._now, []
        for branch in self.known:
            if branch.tick < tick - 1 - FORGET_AFTER:
                branch.clear()
        self.known = [branch for branch in self.known if branch.tick >= tick - 1 or branch.stored]

    def identify(self, conditioning: Conditioning, context: str | None, *, by_order: bool) -> Branch:
        """The branch of a call of this tick; a new one, with nothing stored, where none fits.

        Args:
            conditioning: the arguments that may tell passes apart (see `conditioning_of`).
            context: the name that the pipeline gave the pass, or None.
            by_order: the order inside the tick decides, whatever the arguments (hand-written loops).
        """
        free = [b for b in self.known if b.context == context and b.tick != self.tick]
        if by_order:
            branch = free[0] if free else self._new(context)
        else:
            branch = self._match(free, conditioning, context)
            branch.conditioning = self.habits.worth_keeping(conditioning)
        branch.tick = self.tick
        self._now.append(branch)
        return branch

    def clear(self) -> None:
        for branch in self.known:
            branch.clear()
        self.known, self._before, self._now = [], [], []

    def _match(self, free: list[Branch], conditioning: Conditioning, context: str | None) -> Branch:
        place = len(self._now)
        before = self._before[place] if place < len(self._before) else None
        recent = sorted(free, key=lambda branch: (branch is not before, -branch.tick))
        for branch in recent:
            if self.habits.fit(branch.conditioning, conditioning):
                branch.remade = [
                    p for p in conditioning if not _shared(branch.conditioning.get(p), conditioning[p])
                ]
                self.habits.learn(branch.conditioning, conditioning, self.tick)
                return branch
        if before is not None:
            self.habits.learn(before.conditioning, conditioning, self.tick)
        if not free or context is None:
            return self._new(context)
        recent[0].clear()  # the same pass by name, with another prompt
        return recent[0]

    def _new(self, context: str | None) -> Branch:
        taken = {branch.name for branch in self.known}
        stem = "" if context is None else f"{context}#"
        names = [] if context is None else [context]
        names += [f"{stem}{i}" for i in range(len(taken) + 1)]
        branch = Branch(next(name for name in names if name not in taken), context, self.depth, self.format)
        self.known.append(branch)
        return branch


class Habits:
    """What the arguments do from tick to tick.

    Most stay the same tensor. Some are made anew with the same content; that is read back from the device to be sure.
    Some change altogether at every tick (a ControlNet's residuals): once seen in two ticks, and unless they have ever
    stayed the same, they say nothing about the branch.
    """

    def __init__(self) -> None:
        self._steady: set[str] = set()
        self._changes: dict[str, set[int]] = {}

    def fit(self, known: Conditioning, new: Conditioning) -> bool:
        """Whether two calls may belong to one branch: all but evolving arguments are the same."""
        return all(
            path in known and _same(known[path], argument)
            for path, argument in new.items()
            if not self._evolves(path)
        )

    def learn(self, before: Conditioning, now: Conditioning, tick: int) -> None:
        """`now` was called where `before` was called earlier."""
        for path, argument in now.items():
            if path not in before or path in self._steady or self._evolves(path):
                continue
            if _same(before[path], argument):
                self._steady.add(path)
            else:
                self._changes.setdefault(path, set()).add(tick)

    def worth_keeping(self, conditioning: Conditioning) -> Conditioning:
        """All but evolving arguments: holding those would only cost memory."""
        return {path: argument for path, argument in conditioning.items() if not self._evolves(path)}

    def _evolves(self, path: str) -> bool:
        return len(self._changes.get(path, ())) >= 2


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor or plain value that a pass was called with, and how often the tensor had been written to."""

    value: Any
    version: int | None = None


def conditioning_of(call: Call, evolving: set[str]) -> Conditioning:
    """The arguments that may tell guidance passes apart: all but latents and times."""
    return {
        path: Argument(leaf, version_of(leaf) if isinstance(leaf, Tensor) else None)
        for path, leaf in call.leaves.items()
        if path not in evolving
        and not call.is_latent(path)
        and "time" not in path
        and path not in TIMES
        and isinstance(leaf, (Tensor, bool, int, float, str))
    }


def _shared(a: Argument | None, b: Argument) -> bool:
    """The same memory, or no tensors at all."""
    if a is None or not isinstance(a.value, Tensor) or not isinstance(b.value, Tensor):
        return True
    return a.value is b.value or a.value.data_ptr() == b.value.data_ptr()


def _same(a: Argument, b: Argument) -> bool:
    """The same value: the same memory, not written to since, or else the same content."""
    if not isinstance(a.value, Tensor) or not isinstance(b.value, Tensor):
        return type(a.value) is type(b.value) and bool(a.value == b.value)
    x, y = a.value, b.value
    if (x.shape, x.dtype, x.device) != (y.shape, y.dtype, y.device):
        return False
    if x is y or (x.data_ptr() == y.data_ptr() and x.stride() == y.stride()):
        return a.version == b.version
    return bool(torch.equal(x, y))
