"""Which language models are accelerated, how, and what their last run did."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor

from diffcache.hooks.class_swap import swap_in, swap_out
from diffcache.host.compiled import uncompiled
from diffcache.language import pipelines
from diffcache.language.backbones.base import Backbone
from diffcache.language.backbones.families import backbone_of, is_language_model, verify
from diffcache.language.ledger import Ledger
from diffcache.language.recipes.base import LanguageConfig
from diffcache.language.reports import LanguageReport
from diffcache.language.session import Caller, Plain, Session
from diffcache.schedulers.errors import TargetError


@dataclass(eq=False)
class Attachment:
    """One accelerated model or pipeline.

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


_attachments: "WeakKeyDictionary[Any, Attachment]" = WeakKeyDictionary()
"""By model or pipeline; a model that `torch.compile` wraps stands for what is inside."""

_paused: ContextVar[frozenset[int]] = ContextVar("diffcache_language_paused", default=frozenset())


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
    _attachments[uncompiled(target)] = Attachment(config)
    if in_pipeline:
        swap_in(target, _pipeline_members)


def detach(target: Any) -> None:
    """Forgets the target; a pipeline gets its own class back."""
    if _attachments.pop(uncompiled(target), None) is not None and pipelines.is_language_pipeline(target):
        swap_out(target)


def report_of(target: Any) -> LanguageReport:
    """What the target's last run computed.

    Raises:
        TargetError: the target is not accelerated.
    """
    attachment = _attachments.get(uncompiled(target))
    if attachment is None:
        raise TargetError(f"this {type(target).__name__} is not accelerated: call accelerate() on it first.")
    return LanguageReport(attachment.config.name, attachment.config.options(), attachment.ledger)


@contextmanager
def paused(target: Any) -> Iterator[None]:
    """Inside, runs of `target` compute everything and leave its report as it is; in this thread only.

    Raises:
        TargetError: the target is not accelerated.
    """
    target = uncompiled(target)
    if target not in _attachments:
        raise TargetError(f"this {type(target).__name__} is not accelerated: there is nothing to pause.")
    token = _paused.set(_paused.get() | {id(target)})
    try:
        yield
    finally:
        _paused.reset(token)


def caller_for(net: Backbone, real: Tensor) -> Caller:
    """How the sampler asks the model of these parts in a new run over texts of `real` [b, S]."""
    attachment = _active(net.model)
    return Plain(net, real) if attachment is None else attachment.begin(net, real)


def window_of(model: Any, asked: int | None) -> int | None:
    """How many masks of a text may be committed at most, the first ones: the smaller of `asked` and the method's own."""
    attachment = _active(model)
    own = None if attachment is None else attachment.config.candidates
    return min((size for size in (asked, own) if size is not None), default=None)


def _active(target: Any) -> Attachment | None:
    target = uncompiled(target)
    return None if id(target) in _paused.get() else _attachments.get(target)


def _pipeline_members(base: type) -> dict[str, Any]:
    def begun(pipe: Any) -> pipelines.Begun | None:
        attachment = _active(pipe)
        return None if attachment is None else partial(attachment.begin, backbone_of(pipe.model))

    return pipelines.pipeline_members(base, begun)
