"""Which guidance pass a denoiser call belongs to.

The name that the pipeline gives it (`cache_context`) decides where there is one; else its conditioning arguments;
else its order inside the tick.
"""

from typing import Any

import torch
from torch import Tensor

from diffcache.calls import Call
from diffcache.inner import Interior
from diffcache.store import Store

MAX_BRANCHES = 8
"""More calls than this in one tick are no guidance passes: nothing of theirs is reused."""

FORGET_AFTER = 2
"""A branch that stays away for more ticks than this is forgotten, and computes when it comes back."""

Conditioning = dict[str, Any]


class Branch:
    """One guidance pass: what tells it apart, and what it has stored.

    Attributes:
        conditioning: the arguments of its newest call that may tell it apart.
        fingerprint: of its newest call; `changed` when it differs from that of what had been stored.
        store: its past features; with sites inside the denoiser, only when they were computed.
        interior: those sites, with theirs.
        tick: of its newest call.
    """

    def __init__(self, name: str, context: str | None, depth: int) -> None:
        self.name = name
        self.context = context
        self.conditioning: Conditioning = {}
        self.fingerprint: tuple[Any, ...] = ()
        self.changed = False
        self.store = Store(depth)
        self.interior: Interior | None = None
        self.tick = -1

    def clear(self) -> None:
        self.empty()
        self.conditioning = {}

    def empty(self) -> None:
        """Drops what is stored."""
        self.store.clear()
        if self.interior is not None:
            self.interior.clear()


class Branches:
    """The branches of one denoiser in one run; `tick` is that of its newest call.

    Args:
        depth: how many past features each is to store.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
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
        self.known = [branch for branch in self.known if len(branch.store) or branch.tick >= tick - 1]

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
        recent = sorted(free, key=lambda branch: -branch.tick)
        fitting = [branch for branch in recent if self.habits.fits(branch.conditioning, conditioning)]
        if fitting:
            branch = self.habits.closest(fitting, conditioning)
            self.habits.learn(branch.conditioning, conditioning, self.tick)
            return branch
        if len(self._now) < len(self._before):
            self.habits.learn(self._before[len(self._now)].conditioning, conditioning, self.tick)
        if not free or context is None:
            return self._new(context)
        branch = recent[0]
        if self.habits.broken(branch.conditioning, conditioning):
            branch.clear()  # the same pass with another prompt
        return branch

    def _new(self, context: str | None) -> Branch:
        taken = {branch.name for branch in self.known}
        stem = "" if context is None else f"{context}#"
        names = [] if context is None else [context]
        names += [f"{stem}{i}" for i in range(len(taken) + 1)]
        branch = Branch(next(name for name in names if name not in taken), context, self.depth)
        self.known.append(branch)
        return branch


class Habits:
    """What the arguments do from tick to tick.

    Most keep their identity. Some are made anew with the same content, some change altogether (a ControlNet's
    residuals): done in two ticks, that is a habit, and says nothing about the branch. Content is read back from the
    device only until an argument's habit is known, or to choose between branches that nothing else tells apart.
    """

    def __init__(self) -> None:
        self._kept: set[str] = set()
        self._remade: dict[str, set[int]] = {}
        self._changed: dict[str, set[int]] = {}

    def fits(self, known: Conditioning, new: Conditioning) -> bool:
        """Whether two calls may belong to one branch."""
        return all(
            path in known
            and (_identical(known[path], value) or (path not in self._kept and _equal(known[path], value)))
            for path, value in new.items()
            if not self._is_habit(path)
        )

    def broken(self, known: Conditioning, new: Conditioning) -> bool:
        """Whether an argument that has kept its identity is another one now."""
        return any(
            path in known and not _identical(known[path], new[path]) for path in self._kept & new.keys()
        )

    def closest(self, fitting: list[Branch], conditioning: Conditioning) -> Branch:
        """The first of several fitting branches whose remade arguments have the same content, or the first."""
        remade = [path for path in conditioning if len(self._remade.get(path, ())) >= 2]
        if len(fitting) > 1 and remade:
            for branch in fitting:
                if all(_equal(branch.conditioning.get(path), conditioning[path]) for path in remade):
                    return branch
        return fitting[0]

    def learn(self, before: Conditioning, now: Conditioning, tick: int) -> None:
        """`now` was called where `before` was called earlier."""
        for path, value in now.items():
            if path not in before or path in self._kept or self._is_habit(path):
                continue
            if _identical(before[path], value):
                self._kept.add(path)
            else:
                seen = self._remade if _equal(before[path], value) else self._changed
                seen.setdefault(path, set()).add(tick)

    def worth_keeping(self, conditioning: Conditioning) -> Conditioning:
        """All but the arguments that change at every tick: holding those would only cost memory."""
        return {path: value for path, value in conditioning.items() if len(self._changed.get(path, ())) < 2}

    def _is_habit(self, path: str) -> bool:
        return len(self._remade.get(path, ())) >= 2 or len(self._changed.get(path, ())) >= 2


def conditioning_of(call: Call, evolving: set[str]) -> Conditioning:
    """The arguments that may tell guidance passes apart: no latents, no times (they have at most one dimension)."""
    return {
        path: leaf
        for path, leaf in call.leaves.items()
        if path not in evolving and not call.is_latent(path) and "time" not in path and _tells(leaf)
    }


def _tells(leaf: Any) -> bool:
    return leaf.ndim >= 2 if isinstance(leaf, Tensor) else isinstance(leaf, (bool, int, str))


def _identical(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a is b or (
            (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype) and a.data_ptr() == b.data_ptr()
        )
    return type(a) is type(b) and bool(a == b)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return _identical(a, b) or (
            (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device) and bool(torch.equal(a, b))
        )
    return _identical(a, b)
