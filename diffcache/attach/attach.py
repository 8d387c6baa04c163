"""Attaching: swaps the classes of a target's denoisers and of its pipeline, and gives them back."""

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from torch import nn

from diffcache.attach.attachment import Chooser, DiffusionAttachment, diffusion_attachment_of, key_of
from diffcache.attach.loop_checks import check_denoiser, noise_levels, number_of_steps
from diffcache.attach.overrides import noise_scheduler_members
from diffcache.attach.pipeline_calls import pipeline_members
from diffcache.attach.swapping import swap_in_all
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
from diffcache.hooks.class_swap import is_swapped
from diffcache.host.compiled import each_uncompiled, uncompiled
from diffcache.host.components import (
    denoisers_of,
    networks_of,
    observable,
)
from diffcache.host.network_facts import facts_of_networks
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
    others = [] if isinstance(target, nn.Module) else [(target, pipeline_members)]
    swapped_in = swap_in_all(denoisers, facts_of_networks(denoisers), config, others)
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
