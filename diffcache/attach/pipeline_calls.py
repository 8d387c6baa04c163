"""What the swapped class of a pipeline overrides: its calls."""

import functools
import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from torch import nn

from diffcache.attach.attachment import DiffusionAttachment
from diffcache.attach.overrides import noise_scheduler_members
from diffcache.attach.swapping import swap_in_all
from diffcache.engine.pipeline_scope import PipelineScope
from diffcache.engine.scopes import entered
from diffcache.hooks.attachments import is_paused, kept, own_attachment, swapped
from diffcache.host.callbacks import arguments_of, hidden_from_callbacks
from diffcache.host.compiled import each_uncompiled
from diffcache.host.components import (
    components_of,
    denoisers_of,
    is_denoiser,
    is_wrapper,
    noise_schedulers_of,
)
from diffcache.host.guidance import guidance_in
from diffcache.host.network_facts import facts_of_networks
from diffcache.schedulers.errors import TargetError

logger = logging.getLogger("diffcache")


def pipeline_members(base: type) -> dict[str, Any]:
    """A pipeline's: each call is a scope, in which its denoisers are served and its noise schedulers observed."""

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
        # Left in reverse: the scope closes its run, the attachment keeps the finished records, classes are put back.
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
