"""Attaching: the swapped classes of denoisers, pipelines and noise schedulers, and who is attached to what."""

import functools
import inspect
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn

from diffcache.compiled import uncompiled
from diffcache.config import CacheConfig, RunFacts
from diffcache.places import is_inside, units_for
from diffcache.records import RunRecord
from diffcache.schedulers.errors import TargetError
from diffcache.scopes import LoopScope, PipelineScope, Scope, entered, innermost, scope_of
from diffcache.swap import swap_in, swap_out
from diffcache.targets import denoisers_of, noise_schedulers_of, refuse_foreign_cache
from diffcache.units import block_counts, unit_members

logger = logging.getLogger("diffcache")


@dataclass(eq=False)
class Attachment:
    """One accelerated target.

    Attributes:
        config: its method.
        modules: the denoisers whose class was swapped on its behalf.
        records: of its last call.
    """

    config: CacheConfig
    modules: "WeakSet[nn.Module]" = field(default_factory=WeakSet)
    records: list[RunRecord] = field(default_factory=list)


_attachments: "WeakKeyDictionary[Any, Attachment]" = WeakKeyDictionary()
_strangers: "WeakSet[nn.Module]" = WeakSet()
_paused: ContextVar[frozenset[int]] = ContextVar("diffcache_paused", default=frozenset())


def attachment_of(target: object) -> Attachment | None:
    """That of the target itself, or of the one pipeline through which a denoiser is accelerated."""
    if not isinstance(target, nn.Module):
        return _attachments.get(target) if _can_be_key(target) else None
    plain = uncompiled(target)
    own = _attachments.get(target) or _attachments.get(plain)
    users = _users(plain)
    return own or (users[0] if len(users) == 1 else None)


def attach(target: Any, config: CacheConfig) -> None:
    """Attaches, or gives an attached target another method. Either everything is attached, or nothing.

    Raises:
        TargetError: there is no denoiser, it is cached by somebody else, or its class cannot be swapped.
    """
    denoisers = denoisers_of(target)
    attachment = _attachments.get(target) or Attachment(config)
    _swap_in(denoisers, attachment, config, None if isinstance(target, nn.Module) else target)
    attachment.config, attachment.records = config, []
    _attachments[target] = attachment


def detach(target: Any) -> None:
    """Gives everything its own class back that no other accelerated target needs."""
    attachment = _attachments.pop(target, None) if _can_be_key(target) else None
    if attachment is None:
        return
    if not isinstance(target, nn.Module):
        swap_out(target)
    _release(list(attachment.modules))


@contextmanager
def paused(target: Any) -> Iterator[None]:
    """Inside, calls of `target` compute everything and leave its report as it is; in this thread only.

    Args:
        target: an accelerated pipeline or denoiser.

    Raises:
        TargetError: it is not accelerated.
    """
    if attachment_of(target) is None:
        raise TargetError(f"this {type(target).__name__} is not accelerated: there is nothing to pause.")
    token = _paused.set(_paused.get() | {id(target)})
    try:
        yield
    finally:
        _paused.reset(token)


@contextmanager
def denoising_run(module: nn.Module, num_steps: int, sigmas: Any = None) -> Iterator[LoopScope]:
    """A hand-written denoising loop over an accelerated denoiser; over a plain one it does nothing.

    Call `begin_step(i)` on what it yields before the denoiser calls of step i; each call after it is the next
    guidance branch of that step, in the same order at every step.

        with torch.no_grad(), denoising_run(net, 50) as run:
            for i, t in enumerate(timesteps):
                run.begin_step(i)
                v = net(x, t)

    Args:
        module: the denoiser.
        num_steps: how many model evaluations the loop has (one tick each).
        sigmas: noise level at each tick, `num_steps` numbers or a 1-D tensor; needed by predictors and schedules
            that live on the noise axis, which otherwise use the tick.

    Raises:
        ValueError: fewer `sigmas` than steps, or no step at all.
    """
    if num_steps < 1 or (sigmas is not None and len(sigmas) < num_steps):
        raise TargetError(
            f"denoising_run needs at least one step and a sigma for each; got {num_steps} steps."
        )
    attachment = attachment_of(module)
    plain = uncompiled(module)
    if attachment is None and len(_users(plain)) > 1:
        raise TargetError(
            f"this {type(plain).__name__} belongs to several accelerated pipelines: accelerate it itself."
        )
    if attachment is None or _paused.get() & {id(module), id(plain)}:
        with entered(LoopScope(None, {}, num_steps, sigmas)) as scope:
            yield scope
        return
    _swap_in({"denoiser": module}, attachment, attachment.config)
    scope = LoopScope(attachment.config, {"denoiser": plain}, num_steps, sigmas)
    with _reporting(scope, attachment), entered(scope):
        yield scope


# -- what is swapped in -------------------------------------------------------------------------------------------


def _denoiser_members(base: type) -> dict[str, Any]:
    @functools.wraps(base.__call__)
    def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return base.__call__(self, *args, **kwargs)
        scope = scope_of(self)
        if scope is None or _paused.get() & {id(self), id(uncompiled(self))}:
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


def _pipeline_members(base: type) -> dict[str, Any]:
    @functools.wraps(base.__call__)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        forward = functools.partial(base.__call__, self)
        attachment = _attachments.get(self)
        denoisers = denoisers_of(self) if attachment else {}  # they may have been compiled or replaced since
        if attachment is None or _paused.get() & {id(self), *map(id, denoisers.values())}:
            with entered(None):
                return forward(*args, **kwargs)
        _swap_in(denoisers, attachment, attachment.config)
        noise_schedulers = noise_schedulers_of(self)
        plain = {name: uncompiled(module) for name, module in denoisers.items()}
        scope = PipelineScope(attachment.config, plain, self, noise_schedulers)
        args, kwargs = _hide_from_callbacks(forward, args, kwargs)
        with _observed(noise_schedulers), _reporting(scope, attachment), entered(scope):
            return forward(*args, **kwargs)

    return {"__call__": __call__}


def _noise_scheduler_members(base: type) -> dict[str, Any]:
    def observer(noise_scheduler: object) -> PipelineScope | None:
        scope = innermost()
        return scope if isinstance(scope, PipelineScope) and scope.observes(noise_scheduler) else None

    @functools.wraps(base.set_timesteps)  # type: ignore[attr-defined]
    def set_timesteps(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = base.set_timesteps(self, *args, **kwargs)  # type: ignore[attr-defined]
        if scope := observer(self):
            scope.timesteps_set(self)
        return result

    @functools.wraps(base.step)  # type: ignore[attr-defined]
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = base.step(self, *args, **kwargs)  # type: ignore[attr-defined]
        if scope := observer(self):
            scope.stepped(self, kwargs.get("timestep", args[1] if len(args) > 1 else None))
        return result

    return {"set_timesteps": set_timesteps, "step": step}


# -- helpers ------------------------------------------------------------------------------------------------------


def _swap_in(
    denoisers: dict[str, nn.Module], attachment: Attachment, config: CacheConfig, pipeline: Any = None
) -> None:
    """Swaps in the denoisers, compiled or not, and the pipeline that they belong to: all of them or none."""
    parts = {id(m): m for module in denoisers.values() for m in (module, uncompiled(module))}
    for module in parts.values():
        refuse_foreign_cache(module)
    units = _units(denoisers, config)
    swapped: list[Any] = []
    part: Any = None
    try:
        for part in parts.values():
            if swap_in(part, _denoiser_members):
                swapped.append(part)
        for part in units:
            if swap_in(part, unit_members):
                swapped.append(part)
        part = pipeline
        if pipeline is not None:
            swap_in(pipeline, _pipeline_members)
    except Exception as error:
        _release(swapped)
        raise TargetError(
            f"cannot attach to {type(part).__name__}: its class cannot be swapped ({error})."
        ) from error
    attachment.modules.update([*parts.values(), *units])


def _units(denoisers: dict[str, nn.Module], config: CacheConfig) -> list[nn.Module]:
    """The modules inside the denoisers whose calls the method needs to see."""
    kinds = Counter(type(uncompiled(module)).__name__ for module in denoisers.values())
    found: list[nn.Module] = []
    for name, module in denoisers.items():
        plain = uncompiled(module)
        kind = type(plain).__name__
        facts = RunFacts(kind, kinds[kind], site=name, blocks=block_counts(plain))
        places = config.places(facts)
        if not is_inside(places):
            continue
        if plain is not module:
            raise TargetError(
                "sites inside a denoiser that is compiled as a whole cannot be cached: compile its blocks."
            )
        units, tap = units_for(plain, places), config.tap(facts)
        found += [*units.values(), *(tap.modules(units) if tap else ())]
    return list({id(module): module for module in found}.values())


def _release(modules: list[nn.Module]) -> None:
    for module in modules:
        if not _users(module):
            swap_out(module)


def _users(module: nn.Module) -> list[Attachment]:
    return [attachment for attachment in list(_attachments.values()) if module in attachment.modules]


@contextmanager
def _observed(noise_schedulers: list[Any]) -> Iterator[None]:
    swapped = [s for s in noise_schedulers if swap_in(s, _noise_scheduler_members)]
    try:
        yield
    finally:
        for noise_scheduler in swapped:
            swap_out(noise_scheduler)


@contextmanager
def _reporting(scope: Scope, attachment: Attachment | None) -> Iterator[None]:
    try:
        yield
    finally:
        if attachment is not None:
            attachment.records = scope.records


def _hide_from_callbacks(
    forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A user's callback may call the denoiser, or another pipeline: that is none of this run's business."""
    names = list(inspect.signature(forward).parameters)
    positional = dict(zip(names, args, strict=False))
    for name, value in {**positional, **kwargs}.items():
        if name.startswith("callback") and callable(value):
            if name == "callback_on_step_end" and hasattr(value, "tensor_inputs"):
                kwargs = {**kwargs, "callback_on_step_end_tensor_inputs": value.tensor_inputs}
            if name in kwargs:
                kwargs = {**kwargs, name: _outside_scopes(value)}
            else:
                i = names.index(name)
                args = (*args[:i], _outside_scopes(value), *args[i + 1 :])
    return args, kwargs


def _outside_scopes(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with entered(None):
            return function(*args, **kwargs)

    return call


def _outside(module: nn.Module, scope: Scope | None) -> None:
    """Says once of a denoiser that belongs to an accelerated target that nothing can be reused here."""
    plain = uncompiled(module)
    if scope is None and plain not in _strangers and not _paused.get() and _users(plain):
        _strangers.add(plain)
        logger.warning(
            "%s was called outside an accelerated pipeline's call and outside denoising_run: it computes in full.",
            type(module).__name__,
        )


def _can_be_key(target: object) -> bool:
    try:
        hash(target)
    except TypeError:
        return False
    return type(target).__weakrefoffset__ != 0
