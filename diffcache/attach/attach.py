"""Attaching: swaps the classes of a target's denoisers and of its pipeline, and gives them back."""

import functools
import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from weakref import WeakSet

from torch import nn

from diffcache.attach.attachment import Chooser, DiffusionAttachment, diffusion_attachment_of, key_of
from diffcache.attach.loop_checks import check_denoiser, noise_levels, number_of_steps
from diffcache.attach.overrides import denoiser_members, noise_scheduler_members
from diffcache.attach.requirements import units_of
from diffcache.config import CacheConfig
from diffcache.engine.loop_scope import LoopScope
from diffcache.engine.pipeline_scope import PipelineScope
from diffcache.engine.scopes import entered, scope_of
from diffcache.hooks.attachments import (
    Attachment,
    attachment_of,
    forget,
    is_paused,
    kept,
    own_attachment,
    refuse_in_use,
    register,
    release,
    swapped,
    users_of,
)
from diffcache.hooks.class_swap import Override, is_swapped, swap_in
from diffcache.hooks.watcher import unit_members
from diffcache.host.callbacks import arguments_of, hidden_from_callbacks
from diffcache.host.compiled import each_uncompiled, uncompiled
from diffcache.host.components import (
    components_of,
    denoisers_of,
    is_denoiser,
    is_wrapper,
    networks_of,
    noise_schedulers_of,
    observable,
    refuse_foreign_cache,
)
from diffcache.host.guidance import guidance_in
from diffcache.host.network_facts import NetworkFacts, facts_of_networks
from diffcache.schedulers.errors import TargetError

logger = logging.getLogger("diffcache")


def attach(
    target: Any,
    config: CacheConfig,
    chooser: Chooser | None = None,
    components: Collection[str] | None = None,
) -> None:
    """Attaches, or gives an attached target another method. Either everything is attached, or nothing.

    Args:
        target: a pipeline or a denoiser.
        config: the method.
        chooser: chooses the config for each call of a pipeline; None: `config` for all of them.
        components: names of the pipeline's denoisers that are cached; None for all.

    Raises:
        TargetError: there is no denoiser, it is cached by somebody else or being served, or its class cannot be swapped.
        ScheduleError: the method was made for other denoisers.
    """
    refuse_in_use(key_of(target))
    denoisers = denoisers_of(target, components)
    config.check(each_uncompiled(denoisers))
    pipeline = None if isinstance(target, nn.Module) else target
    swapped_in = swap_in_all(denoisers, facts_of_networks(denoisers), config, pipeline)
    attachment = DiffusionAttachment(config, WeakSet(swapped_in), chooser=chooser, components=components)
    register(key_of(target), attachment)


def report_of(target: Any) -> Any:
    """The report of a target's last call, of whatever kind the target is; an empty one before the first.

    Raises:
        TargetError: the target is not accelerated.
    """
    attachment = attachment_of(key_of(target))
    if attachment is None:
        raise TargetError(f"this {type(target).__name__} is not accelerated: call accelerate() on it first.")
    return attachment.report()


@contextmanager
def put_back_on_error(target: Any) -> Iterator[None]:
    """If an error is raised inside, what was attached to the target before is attached again, with its report."""
    before = own_attachment(key_of(target))
    try:
        yield
    except BaseException:
        _put_back(target, before)
        raise


@contextmanager
def set_aside(target: Any) -> Iterator[None]:
    """Inside, the target is plain; what was attached to it is attached again afterwards, with its report."""
    before = own_attachment(key_of(target))
    detach(target)
    try:
        yield
    finally:
        _put_back(target, before)


def _put_back(target: Any, before: Attachment | None) -> None:
    if isinstance(before, DiffusionAttachment) and own_attachment(key_of(target)) is not before:
        attach(target, before.config, before.chooser, before.components)
        register(key_of(target), before)


def detach(target: Any) -> None:
    """Removes what is attached to a target, of whatever kind. What nobody else needs gets its own class back.

    So do the modules inside the target that nobody needs: a pipeline that was collected while it was accelerated could not give them theirs.

    Raises:
        TargetError: it is a denoiser that is being served.
    """
    refuse_in_use(key_of(target))
    forget(key_of(target))
    networks = [target] if isinstance(target, nn.Module) else networks_of(target).values()
    release(module for network in networks for module in network.modules() if is_swapped(module))


@contextmanager
def denoising_run(
    module: nn.Module, num_steps: int, sigmas: Any = None, noise_scheduler: Any = None
) -> Iterator[LoopScope]:
    """A hand-written denoising loop over an accelerated denoiser; over a plain denoiser it does nothing.

    Call `begin_step(i)` on what it yields once for each step, before the denoiser calls of step i. Each of these is a guidance pass: it is known
    again by the tensors that stay the same objects from step to step, else by its place among the calls. Samples that are denoised one after
    another within a step count as passes, too: up to eight calls in a step can be reused.

        with torch.no_grad(), denoising_run(net, 50) as run:
            for i, t in enumerate(timesteps):
                run.begin_step(i)
                v = net(x, t)

    Args:
        module: the denoiser; of a pipeline pass its denoiser (`pipe.transformer`, `pipe.unet`).
        num_steps: how many model evaluations the loop has (one tick each).
        sigmas: noise level at each tick, `num_steps` numbers or a 1-D tensor; needed by predictors and schedules
            that live on the noise axis, which otherwise use the tick. Without a noise scheduler, levels of at most 1 are
            taken to be those of flow matching.
        noise_scheduler: Diffusers' that the loop steps with, after `set_timesteps`. Hindsight needs it, it tells the sigmas
            where none are given, and it tells what the denoiser predicts: a predicted noise is extrapolated as a velocity.
            Where it clips samples, its `step` may return a corrected sample: pass each step the tensor that the step before returned.

    Raises:
        TargetError: (a ValueError) `module` is no denoiser, `num_steps` no whole number above 0 or not the number of
            timesteps, or `sigmas` are not finite or fewer than steps.
    """
    check_denoiser(module)
    num_steps = number_of_steps(num_steps, noise_scheduler)
    levels = noise_levels(sigmas, num_steps, noise_scheduler)
    attachment = diffusion_attachment_of(module)
    plain = uncompiled(module)
    if attachment is None and len(users_of(plain)) > 1:
        raise TargetError(
            f"this {type(plain).__name__} belongs to several accelerated pipelines: accelerate it itself."
        )
    if attachment is not None and attachment.chooser is not None:
        raise TargetError(
            "max_cache_bytes= bounds pipeline calls only: leave it out, and choose cache_dtype= with plan()."
        )
    if attachment is None or is_paused(module, plain):
        with entered(LoopScope(None, {}, num_steps, levels)) as scope:
            yield scope
        return
    denoisers = {"denoiser": module}
    facts = facts_of_networks(denoisers)
    attachment.swapped.update(swap_in_all(denoisers, facts, attachment.config))
    around = scope_of(module)
    scope = LoopScope(attachment.config, {"denoiser": plain}, num_steps, levels, noise_scheduler, facts=facts)
    if isinstance(around, PipelineScope):
        scope.records = around.records  # a pipeline's call has one report, of all its loops
    stepped, recording = observable([noise_scheduler]), attachment.recording(module, scope)
    with kept(attachment.swapped), swapped(stepped, noise_scheduler_members), recording, entered(scope):
        yield scope


def _pipeline_members(base: type) -> dict[str, Any]:
    @functools.wraps(base.__call__)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        forward = functools.partial(base.__call__, self)
        attachment, denoisers = _active(self)
        if attachment is None:
            with _no_scope():
                return forward(*args, **kwargs)
        facts = facts_of_networks(denoisers)
        attachment.swapped.update(swap_in_all(denoisers, facts, attachment.config))
        call = arguments_of(forward, args, kwargs)
        chosen = attachment.config_for(self, call)
        noise_schedulers = noise_schedulers_of(self)
        notes = [*chosen.notes, *_left_out(self, denoisers)]
        scope = PipelineScope(
            chosen.config,
            denoisers,
            self,
            noise_schedulers,
            call=call,
            notes=notes,
            guidance=guidance_in(self, call),
            facts=facts,
        )
        args, kwargs = hidden_from_callbacks(forward, args, kwargs, _no_scope, scope.latents_replaced)
        recording = attachment.recording(self, scope)
        with (
            kept(attachment.swapped),
            swapped(noise_schedulers, noise_scheduler_members),
            recording,
            entered(scope),
        ):
            return forward(*args, **kwargs)

    return {"__call__": __call__}


def _left_out(pipeline: Any, denoisers: Mapping[str, nn.Module]) -> Iterator[str]:
    """What the report says of networks that are called at each step, or may be, and that nothing is attached to."""
    parts = components_of(pipeline)
    others = [
        name
        for name, part in parts.items()
        if name not in denoisers and (is_denoiser(part) or is_wrapper(part))
    ]
    if others:
        yield f"{', '.join(others)}: not cached, and its calls are not counted"


def _no_scope() -> AbstractContextManager[None]:
    return entered(None)


def _active(pipeline: Any) -> tuple[DiffusionAttachment | None, dict[str, nn.Module]]:
    """What is attached to a pipeline, None where it is paused, and its denoisers as they are now: compiled or replaced since."""
    attachment = own_attachment(pipeline)
    if not isinstance(attachment, DiffusionAttachment):
        return None, {}
    try:
        denoisers = denoisers_of(pipeline, attachment.components)
    except TargetError as error:
        # Another object was put in the denoiser's place: the pipeline runs as it would by itself.
        logger.warning("this call is not cached: %s", error)
        attachment.last = None
        return None, {}
    return None if is_paused(pipeline, *each_uncompiled(denoisers).values()) else attachment, denoisers


def swap_in_all(
    denoisers: dict[str, nn.Module],
    facts: Mapping[str, NetworkFacts],
    config: CacheConfig | None,
    pipeline: Any = None,
) -> list[Any]:
    """Swaps in the denoisers, compiled or not, and the pipeline that they belong to: all of them or none.

    Returns the objects whose swap the method needs. `facts` are those of the denoisers now.
    """
    for name, module in denoisers.items():
        refuse_foreign_cache(module, hooked=facts[name].has_foreign_hook)
    parts = {id(m): m for module in denoisers.values() for m in (module, uncompiled(module))}
    wanted: list[tuple[Any, Override]] = [(part, denoiser_members) for part in parts.values()]
    units = [] if config is None else units_of(denoisers, facts, config)
    wanted += [(unit, unit_members) for unit in units]
    wanted += [] if pipeline is None else [(pipeline, _pipeline_members)]
    done: list[Any] = []
    for part, override in wanted:
        try:
            if swap_in(part, override):
                done.append(part)
        except Exception as error:
            release(done)
            raise TargetError(
                f"cannot attach to {type(part).__name__}: its class cannot be swapped ({error})."
            ) from error
    return [part for part, _ in wanted]
