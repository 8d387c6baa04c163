"""Which guidance pass a denoiser call belongs to.

The name that the pipeline gives it (`cache_context`) decides where there is one; else its conditioning arguments. In a hand-written loop
the tensors decide that stay the same objects; where none does, its order inside the tick.
"""

from collections.abc import Sequence
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from diffcache.engine.branch import Branch, Identities
from diffcache.host.call import Argument, Conditioning
from diffcache.host.conventions import is_residual_of_control
from diffcache.store.rings import StoreSetup

MAX_BRANCHES = 8
"""More calls than this in one tick are no guidance passes: nothing of theirs is reused."""

FORGET_AFTER = 2
"""A branch that stays away for more ticks than this is forgotten, and computes when it comes back."""

OFTEN = 4
"""In hand-written loops an argument that is another one twice within so many ticks says nothing of the pass."""


class Branches:
    """The branches of one denoiser in one run.

    Args:
        setup: of their stores.

    Attributes:
        known: those that have been called lately.
        calls: how many calls there have been in this tick.
        tick: of the newest call.
    """

    def __init__(self, setup: StoreSetup) -> None:
        self.setup = setup
        self.known: list[Branch] = []
        self.calls = 0
        self.tick = -1
        self._habits = Habits()
        self._before: list[Branch] = []
        self._now: list[Branch] = []

    def begin_tick(self, tick: int) -> None:
        """A call at this tick arrives; forgets branches that have stayed away."""
        if tick == self.tick:
            return
        self.tick, self.calls = tick, 0
        self._before, self._now = self._now, []
        kept = []
        for branch in self.known:
            if branch.tick >= tick - 1:
                kept.append(branch)
            elif branch.tick < tick - 1 - FORGET_AFTER:
                branch.clear()
            elif branch.stored:
                kept.append(branch)
        self.known = kept

    def identify(self, conditioning: Conditioning, context: str | None, *, hand_written: bool) -> Branch:
        """The branch of a call of this tick; a new one, with nothing stored, where none fits.

        Args:
            conditioning: the arguments that may tell passes apart (see `Call.conditioning`).
            context: the name that the pipeline gave the pass, or None.
            hand_written: no tensor's content is compared. Passes are told apart by tensors that stay the same objects and by plain values, else
                by their order.
        """
        if hand_written:
            branch = self._with_same_arguments(_identities(conditioning), context)
        else:
            before = self._before[self.calls] if self.calls < len(self._before) else None
            if before is None or not self._is_called_again(before, conditioning, context):
                branch = self._match(before, conditioning, context)
            else:
                branch = before
            branch.conditioning = self._habits.worth_keeping(conditioning)
        branch.tick = self.tick
        self.calls += 1
        self._now.append(branch)
        return branch

    def passed_by(self, context: str | None) -> str:
        """The name of a call of this tick that no branch is looked for; it counts as one of its calls."""
        name = str(self.calls) if context is None else context
        self.calls += 1
        return name

    def clear(self) -> None:
        """Drops everything."""
        for branch in self.known:
            branch.clear()
        self.known, self._before, self._now = [], [], []

    def _is_called_again(self, before: Branch, conditioning: Conditioning, context: str | None) -> bool:
        """Whether a call has the very same arguments as the one at its place in the tick before."""
        if before.context != context or before.tick == self.tick:
            return False
        known, evolving = before.conditioning, self._habits.evolving
        for path, argument in conditioning.items():
            if path not in evolving:
                same = known.get(path)
                if same is None or same.value is not argument.value or same.version != argument.version:
                    return False
        before.remade = []
        self._habits.stayed(conditioning)
        return True

    def _match(self, before: Branch | None, conditioning: Conditioning, context: str | None) -> Branch:
        free = [b for b in self.known if b.context == context and b.tick != self.tick]
        recent = sorted(free, key=lambda branch: (branch is not before, -branch.tick))
        for branch in recent:
            if self._habits.fit(branch.conditioning, conditioning):
                branch.remade = [
                    path
                    for path, argument in conditioning.items()
                    if not _shared(branch.conditioning.get(path), argument)
                ]
                self._habits.stayed(conditioning)
                return branch
        if before is not None and self._habits.changed(before.conditioning, conditioning, self.tick):
            return self._match(before, conditioning, context)
        if not recent or context is None:
            return self._new(context)
        recent[0].clear()  # the same pass by name, with another prompt
        return recent[0]

    def _with_same_arguments(self, given: Identities, context: str | None) -> Branch:
        """Of the branches of this name that have not been called in this tick the one that was given most of these, or the first.

        Where an argument had stayed and is another one now, this is another prompt, and nothing stored is of use. One that changes often
        says nothing.
        """
        free = [branch for branch in self.known if branch.context == context and branch.tick != self.tick]
        branch = max(free, key=lambda one: len(_same(one.given, given))) if free else self._new(context)
        same = _same(branch.given, given)
        moved = (branch.kept & given.keys()) - same - branch.restless
        branch.restless |= {path for path in moved if self.tick - branch.moved.get(path, -OFTEN - 1) <= OFTEN}
        if moved - branch.restless:
            branch.empty()
        branch.moved.update(dict.fromkeys(moved, self.tick))
        branch.given, branch.kept = given, same
        return branch

    def _new(self, context: str | None) -> Branch:
        taken = {branch.name for branch in self.known}
        stem = "" if context is None else f"{context}#"
        names = [] if context is None else [context]
        names += [f"{stem}{i}" for i in range(len(taken) + 1)]
        branch = Branch(next(name for name in names if name not in taken), context, self.setup)
        self.known.append(branch)
        return branch


class Habits:
    """What the arguments do from tick to tick.

    Most stay the same tensor. Some are made anew with the same content; that is read back from the device to be sure.
    Some change altogether at every tick: once seen in two ticks, they say nothing about the branch. If they have ever stayed the same, the two
    must follow one another. Of a ControlNet's residuals one change tells that, unless they have stayed the same, as before its part of the run.

    Attributes:
        steady: paths of arguments that have stayed the same from one tick to the next.
        evolving: paths of arguments that change at every tick.
    """

    def __init__(self) -> None:
        self.steady: set[str] = set()
        self.evolving: set[str] = set()
        self._changed_at: dict[str, int] = {}

    def fit(self, known: Conditioning, new: Conditioning) -> bool:
        """Whether two calls may belong to one branch: all but evolving arguments are the same."""
        paths = [path for path in new if path not in self.evolving]
        # What shapes or values tell is asked first: it takes no read of the device.
        if any(path not in known or _same_unread(known[path], new[path]) is False for path in paths):
            return False
        return all(_same_each(known, new, paths))

    def stayed(self, now: Conditioning) -> None:
        """A branch is called with what it was called with before, but for evolving arguments."""
        self.steady.update(now.keys() - self.evolving)

    def changed(self, before: Conditioning, now: Conditioning, tick: int) -> bool:
        """`now` is called where `before` was called a tick earlier. Returns whether that shows that an argument evolves."""
        paths = [path for path in now if path in before and path not in self.evolving]
        known = len(self.evolving)
        for path, same in zip(paths, _same_each(before, now, paths), strict=True):
            last = self._changed_at.get(path)
            if same:
                self.steady.add(path)
            elif last == tick - 1 or (
                path not in self.steady and (last not in (None, tick) or is_residual_of_control(path))
            ):
                self.evolving.add(path)
            else:
                self._changed_at[path] = tick
        return len(self.evolving) > known

    def worth_keeping(self, conditioning: Conditioning) -> Conditioning:
        """All but evolving arguments: holding those would only cost memory."""
        if not self.evolving:
            return conditioning
        return {path: argument for path, argument in conditioning.items() if path not in self.evolving}


def _identities(conditioning: Conditioning) -> Identities:
    return {
        path: (
            ref(argument.value) if isinstance(argument.value, Tensor) else argument.value,
            argument.version,
        )
        for path, argument in conditioning.items()
    }


def _same(before: Identities, now: Identities) -> set[str]:
    """The paths of tensors that are the same objects and have not been written to, and of equal plain values."""
    return {path for path in now.keys() & before.keys() if _is_same(*before[path], *now[path])}


def _is_same(before: Any, version: int | None, now: Any, version_now: int | None) -> bool:
    if isinstance(before, ref) and isinstance(now, ref):
        return before() is now() is not None and version == version_now
    return type(before) is type(now) and bool(before == now)


def _shared(a: Argument | None, b: Argument) -> bool:
    """The same memory, or no tensors at all."""
    if a is None or not isinstance(a.value, Tensor) or not isinstance(b.value, Tensor):
        return True
    return a.value is b.value or a.value.data_ptr() == b.value.data_ptr()


def _same_each(before: Conditioning, now: Conditioning, paths: Sequence[str]) -> list[bool]:
    """Whether the values at each of these paths are the same: the same memory, not written to since, or else the same content.

    A device is read once. A ControlNet's residuals are a dozen new tensors at every tick.
    """
    same = {path: _same_unread(before[path], now[path]) for path in paths}
    unread: dict[torch.device, list[str]] = {}
    for path in paths:
        if same[path] is None:
            unread.setdefault(now[path].value.device, []).append(path)
    for there in unread.values():
        equal = torch.stack([(before[path].value == now[path].value).all() for path in there]).tolist()
        same.update(zip(there, equal, strict=True))
    return [bool(same[path]) for path in paths]


def _same_unread(a: Argument, b: Argument) -> bool | None:
    """Whether two values are the same, as far as that is known without their content; None where it is not."""
    if not isinstance(a.value, Tensor) or not isinstance(b.value, Tensor):
        return type(a.value) is type(b.value) and bool(a.value == b.value)
    x, y = a.value, b.value
    if (x.shape, x.dtype, x.device) != (y.shape, y.dtype, y.device):
        return False
    if x is y or (x.data_ptr() == y.data_ptr() and x.stride() == y.stride()):
        return a.version == b.version
    return None
