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
from diffcache.language.backbones.base import Net
from diffcache.language.backbones.families import backbone_of, is_language_model
from diffcache.language.recipes.base import LanguageConfig
from diffcache.language.recipes.block_causal import BlockCausalConfig
from diffcache.language.report import LanguageReport
from diffcache.language.session import ModelCaller, PlainCaller, Session
from diffcache.language.verification import verify


@dataclass(eq=False)
class LanguageAttachment(Attachment):
    """What is attached to a language model, or to a pipeline around one.

    Attributes:
        config: its method.
        last: the report of its last run; None before the first.
    """

    config: LanguageConfig
    last: LanguageReport | None = None

    def start_run(self, net: Net, real: Tensor) -> Session:
        """A new run over texts of `real` [b, S], False at padding."""
        session = Session(net, self.config, real)
        self.last = session.report
        return session

    def report(self) -> LanguageReport:
        return self.last or LanguageReport(self.config.name, self.config.options())


def is_language(target: object) -> bool:
    """Whether the target is a language model, or a pipeline around one."""
    return is_language_model(target) or pipelines.is_language_pipeline(target)


def attach(target: Any, config: LanguageConfig) -> None:
    """Attaches, or gives an attached target another method. Either everything is attached, or nothing.

    Raises:
        TargetError: a causal model, one of no known family, or one that masks attention in a way that no net has.
    """
    from diffcache.language.remote_code import complete, is_remote, refill_frequencies

    in_pipeline = pipelines.is_language_pipeline(target)
    model = uncompiled(target.model if in_pipeline else target)
    if is_remote(model):
        complete(model)
        refill_frequencies(model)
    verify(model, config)
    if in_pipeline:
        swap_in(target, _pipeline_members)
    register(uncompiled(target), LanguageAttachment(config, WeakSet([target] if in_pipeline else [])))


def default_for(target: Any, usual: LanguageConfig) -> LanguageConfig:
    """The method where none is asked for: an exact one for models that attend in blocks, else the usual one."""
    model = target.model if pipelines.is_language_pipeline(target) else target
    return usual if backbone_of(model).block_attention is None else BlockCausalConfig()


def model_caller(net: Net, real: Tensor) -> ModelCaller:
    """How the sampler asks the model of these parts in a new run over texts of `real` [b, S]."""
    attachment = _active(net.model)
    return PlainCaller(net, real) if attachment is None else attachment.start_run(net, real)


def window_of(model: Any, asked: int | None) -> int | None:
    """Only the first so many masks of a text may be committed: the smaller of `asked` and the method's own."""
    attachment = _active(model)
    own = None if attachment is None else attachment.config.commit_window
    return min((size for size in (asked, own) if size is not None), default=None)


def _active(target: Any) -> LanguageAttachment | None:
    """What is attached to a target that is not paused."""
    target = uncompiled(target)
    attachment = own_attachment(target)
    return attachment if isinstance(attachment, LanguageAttachment) and not is_paused(target) else None


def _pipeline_members(base: type) -> dict[str, Any]:
    def start_run(pipe: Any) -> pipelines.StartRun | None:
        attachment = _active(pipe)
        return None if attachment is None else partial(attachment.start_run, backbone_of(pipe.model))

    return pipelines.pipeline_members(base, start_run)
