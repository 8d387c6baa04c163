"""Attaching a cache to a language model, or to a pipeline around one."""

from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakSet

from torch import Tensor

from diffcache.hooks.attachments import Attachment, is_paused, own_attachment, register
from diffcache.hooks.class_swap import swap_in
from diffcache.host.compiled import uncompiled
from diffcache.language import pipelines
from diffcache.language.backbones.base import Backbone
from diffcache.language.backbones.families import backbone_of, is_language_model, verify
from diffcache.language.ledger import Ledger
from diffcache.language.recipes.base import LanguageConfig
from diffcache.language.reports import LanguageReport
from diffcache.language.session import Caller, Plain, Session


@dataclass(eq=False)
class LanguageAttachment(Attachment):
    """Of a language model, or of a pipeline around one.

    Attributes:
        config: its method.
        ledger: of its last run; None before the first.
    """

    config: LanguageConfig
    ledger: Ledger | None = None

    def begin(self, net: Backbone, real: Tensor) -> Session:
        """A new run over texts of `real` [b, S]."""
        session = Session(net, self.config, real)
        self.ledger = session.ledger
        return session

    def report(self) -> LanguageReport:
        return LanguageReport(self.config.name, self.config.options(), self.ledger)


def is_language(target: object) -> bool:
    """Whether `accelerate` hands the target over to this part of the library."""
    return is_language_model(target) or pipelines.is_language_pipeline(target)


def attach(target: Any, config: LanguageConfig) -> None:
    """Attaches, or gives an attached target another method. Either everything is attached, or nothing.

    Raises:
        TargetError: a causal model, or one of no known family.
    """
    in_pipeline = pipelines.is_language_pipeline(target)
    verify(target.model if in_pipeline else target)
    if in_pipeline:
        swap_in(target, _pipeline_members)
    register(uncompiled(target), LanguageAttachment(config, WeakSet([target] if in_pipeline else [])))


def caller_for(net: Backbone, real: Tensor) -> Caller:
    """How the sampler asks the model of these parts in a new run over texts of `real` [b, S]."""
    attachment = _active(net.model)
    return Plain(net, real) if attachment is None else attachment.begin(net, real)


def window_of(model: Any, asked: int | None) -> int | None:
    """How many masks of a text may be committed at most, the first ones: the smaller of `asked` and the method's own."""
    attachment = _active(model)
    own = None if attachment is None else attachment.config.candidates
    return min((size for size in (asked, own) if size is not None), default=None)


def _active(target: Any) -> LanguageAttachment | None:
    """What is attached to a target that is not paused."""
    target = uncompiled(target)
    attachment = own_attachment(target)
    return attachment if isinstance(attachment, LanguageAttachment) and not is_paused(target) else None


def _pipeline_members(base: type) -> dict[str, Any]:
    def begun(pipe: Any) -> pipelines.Begun | None:
        attachment = _active(pipe)
        return None if attachment is None else partial(attachment.begin, backbone_of(pipe.model))

    return pipelines.pipeline_members(base, begun)
