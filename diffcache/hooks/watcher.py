"""Lets a watcher see, and replace, the calls of some modules while a denoiser's forward runs."""

from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any, Protocol

from torch import nn
from torch.compiler import is_dynamo_compiling


class Watcher(Protocol):
    """Is asked to run each call of the units that it watches.

    Attributes:
        watches: the units' identities (`id(module)`).
    """

    @property
    def watches(self) -> Container[int]: ...

    def unit(self, module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """Returns what the unit's call returns: that of `forward(*args, **kwargs)`, or something else instead."""


_watcher: ContextVar[Watcher | None] = ContextVar("diffcache_units", default=None)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Inside, in this context, every call of a unit that `watcher` watches goes to it. The unit's class must be swapped."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def unit_members(base: type) -> dict[str, Any]:
    """The attributes of a unit's swapped class (see `class_swap`): its calls go to the watcher."""

    @wraps(base.__call__)
    def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return base.__call__(self, *args, **kwargs)
        watcher = _watcher.get()
        if watcher is None or id(self) not in watcher.watches:
            return base.__call__(self, *args, **kwargs)
        return watcher.unit(self, partial(base.__call__, self), args, kwargs)

    return {"__call__": __call__}
