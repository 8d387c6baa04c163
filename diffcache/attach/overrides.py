"""What the swapped classes of denoisers and noise schedulers override."""

import functools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from torch import nn
from torch.compiler import is_dynamo_compiling

from diffcache.engine.scopes import Scope, innermost, scope_of
from diffcache.hooks.attachments import PAUSED, is_paused, users_of
from diffcache.host.compiled import uncompiled

logger = logging.getLogger("diffcache")

_strangers: "WeakSet[nn.Module]" = WeakSet()


def denoiser_members(base: type) -> dict[str, Any]:
    """A denoiser's: its calls and its `cache_context` go through the scope that serves it."""

    @functools.wraps(base.__call__)
    def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():  # is_compiling() is true while any thread compiles
            return base.__call__(self, *args, **kwargs)
        scope = scope_of(self)
        if scope is None or (PAUSED.get() and is_paused(self, uncompiled(self))):
            _outside(self, scope)
            return base.__call__(self, *args, **kwargs)
        return scope.call(self, functools.partial(base.__call__, self), args, kwargs)

    members: dict[str, Any] = {"__call__": __call__}
    if hasattr(base, "cache_context"):
        plain_context = base.cache_context

        @contextmanager
        def cache_context(self: nn.Module, name: str, **kwargs: Any) -> Iterator[None]:
            scope = scope_of(self)
            with plain_context(self, name, **kwargs):
                if scope is None:
                    yield
                else:
                    with scope.named(name):
                        yield

        members["cache_context"] = functools.wraps(plain_context)(cache_context)
    return members


def noise_scheduler_members(base: type) -> dict[str, Any]:
    """A noise scheduler's, during a pipeline call or a hand-written loop: the scope is told of `set_timesteps` and `step`."""

    def observer(noise_scheduler: object) -> Scope | None:
        scope = innermost()
        return scope if scope is not None and scope.observes(noise_scheduler) else None

    @functools.wraps(base.set_timesteps)  # type: ignore[attr-defined]
    def set_timesteps(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = base.set_timesteps(self, *args, **kwargs)  # type: ignore[attr-defined]
        if scope := observer(self):
            scope.timesteps_set(self)
        return result

    @functools.wraps(base.step)  # type: ignore[attr-defined]
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        scope = observer(self)
        if scope is None:
            return base.step(self, *args, **kwargs)  # type: ignore[attr-defined]
        timestep = kwargs.get("timestep", args[1] if len(args) > 1 else None)
        corrected = scope.stepping(self, args, kwargs)
        if corrected is not None:
            args, kwargs = (), corrected.arguments
        result = base.step(self, *args, **kwargs)  # type: ignore[attr-defined]
        scope.stepped(self, timestep, kwargs, result)
        return result

    return {"set_timesteps": set_timesteps, "step": step}


def _outside(module: nn.Module, scope: Scope | None) -> None:
    """Says once of a denoiser that belongs to an accelerated target that nothing is reused here.

    It may be meant so: a plain pipeline that shares the denoiser runs as it is.
    """
    plain = uncompiled(module)
    if scope is None and plain not in _strangers and not PAUSED.get() and users_of(plain):
        _strangers.add(plain)
        logger.warning(
            "%s computes in full outside accelerated pipelines and denoising_run: to reuse there as well, accelerate the "
            "pipeline that calls it, or put your own loop into denoising_run.",
            type(module).__name__,
        )
