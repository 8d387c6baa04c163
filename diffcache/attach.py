"""Attaching: swaps the classes of a target's denoisers and of its pipeline, and gives them back."""

import functools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from diffcache.agreement import gathers_weights
from diffcache.attachments import (
    Attachment,
    attachment_of,
    attachments,
    can_be_key,
    is_paused,
    reporting,
    users_of,
)
from diffcache.callbacks import hidden_from_callbacks
from diffcache.compiled import compiled_above, is_compiled, uncompiled
from diffcache.config import CacheConfig, RunFacts
from diffcache.overrides import denoiser_members, noise_scheduler_members
from diffcache.places import is_inside, units_for
from diffcache.schedulers.errors import TargetError
from diffcache.scopes import LoopScope, PipelineScope, entered
from diffcache.swap import swap_in, swap_out, swapped
from diffcache.targets import denoisers_of, noise_schedulers_of, refuse_foreign_cache
from diffcache.units import block_counts, unit_members


def attach(target: Any, config: CacheConfig) -> None:
    """Attaches, or gives an attached target another method. Either everything is attached, or nothing.

    Raises:
        TargetError: there is no denoiser, it is cached by somebody else, or its class cannot be swapped.
    """
    denoisers = denoisers_of(target)
    attachment = attachments.get(target) or Attachment(config)
    _swap_in(denoisers, attachment, config, None if isinstance(target, nn.Module) else target)
    attachment.config, attachment.records = config, []
    attachments[target] = attachment


def detach(target: Any) -> None:
    """Gives everything its own class back that no other accelerated target needs."""
    attachment = attachments.pop(target, None) if can_be_key(target) else None
    if attachment is None:
        return
    if not isinstance(target, nn.Module):
        swap_out(target)
    _release(list(attachment.modules))


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
    if attachment is None and len(users_of(plain)) > 1:
        raise TargetError(
            f"this {type(plain).__name__} belongs to several accelerated pipelines: accelerate it itself."
        )
    if attachment is None or is_paused(module, plain):
        with entered(LoopScope(None, {}, num_steps, sigmas)) as scope:
            yield scope
        return
    _swap_in({"denoiser": module}, attachment, attachment.config)
    scope = LoopScope(attachment.config, {"denoiser": plain}, num_steps, sigmas)
    with reporting(scope, attachment), entered(scope):
        yield scope


def _pipeline_members(base: type) -> dict[str, Any]:
    @functools.wraps(base.__call__)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        forward = functools.partial(base.__call__, self)
        attachment = attachments.get(self)
        denoisers = denoisers_of(self) if attachment else {}  # they may have been compiled or replaced since
        if attachment is None or is_paused(self, *denoisers.values()):
            with entered(None):
                return forward(*args, **kwargs)
        _swap_in(denoisers, attachment, attachment.config)
        noise_schedulers = noise_schedulers_of(self)
        plain = {name: uncompiled(module) for name, module in denoisers.items()}
        scope = PipelineScope(attachment.config, plain, self, noise_schedulers)
        args, kwargs = hidden_from_callbacks(forward, args, kwargs)
        with swapped(noise_schedulers, noise_scheduler_members), reporting(scope, attachment), entered(scope):
            return forward(*args, **kwargs)

    return {"__call__": __call__}


def _swap_in(
    denoisers: dict[str, nn.Module], attachment: Attachment, config: CacheConfig, pipeline: Any = None
) -> None:
    """Swaps in the denoisers, compiled or not, and the pipeline that they belong to: all of them or none."""
    parts = {id(m): m for module in denoisers.values() for m in (module, uncompiled(module))}
    for module in parts.values():
        refuse_foreign_cache(module)
    units = _units(denoisers, config)
    done: list[Any] = []
    part: Any = None
    try:
        for part in parts.values():
            if swap_in(part, denoiser_members):
                done.append(part)
        for part in units:
            if swap_in(part, unit_members):
                done.append(part)
        part = pipeline
        if pipeline is not None:
            swap_in(pipeline, _pipeline_members)
    except Exception as error:
        _release(done)
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
        if is_compiled(module):
            raise TargetError(
                f"{kind} is compiled as a whole, so that {_named(places)} inside it cannot be cached: compile its "
                "blocks instead (compile_repeated_blocks), or cache the whole model."
            )
        if gathers_weights(plain):
            raise TargetError(
                f"{kind} is fully sharded (FSDP), so that {_named(places)} inside it cannot be cached: cache the whole model."
            )
        units, tap = units_for(plain, places), config.tap(facts)
        hiding = compiled_above(plain, units)
        if hiding is not None:
            raise TargetError(
                f"{kind}.{hiding} is compiled, so that {_named(places)} inside it cannot be cached: cache its blocks, "
                "its stack or the whole model, or leave its blocks uncompiled."
            )
        found += [*units.values(), *(tap.modules(units) if tap else ())]
    return list({id(module): module for module in found}.values())


def _named(places: tuple[str, ...]) -> str:
    return ", ".join(map(repr, places))


def _release(modules: list[nn.Module]) -> None:
    for module in modules:
        if not users_of(module):
            swap_out(module)
