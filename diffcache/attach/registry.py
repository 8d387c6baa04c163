"""Who is attached to what: accelerated targets, their methods, and the records of their last calls."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from torch import nn

from diffcache.config import CacheConfig
from diffcache.engine.scopes import Scope
from diffcache.host.compiled import uncompiled
from diffcache.reports.records import RunRecord
from diffcache.schedulers.errors import TargetError


@dataclass(frozen=True)
class Fitted:
    """A method that keeps to a bound, and what had to be done for that."""

    config: CacheConfig
    notes: tuple[str, ...] = ()


@dataclass(eq=False)
class Attachment:
    """One accelerated target.

    Attributes:
        config: its method.
        modules: the denoisers whose class was swapped on its behalf.
        records: of its last call.
        max_cache_bytes: what its runs may hold at once; None for no bound.
        components: the pipeline's denoisers that it is attached to; None for all.
        fitted: the form of its last call, and the method as it was fitted to the bound.
    """

    config: CacheConfig
    modules: "WeakSet[nn.Module]" = field(default_factory=WeakSet)
    records: list[RunRecord] = field(default_factory=list)
    max_cache_bytes: int | None = None
    components: Collection[str] | None = None
    fitted: tuple[Any, Fitted] | None = None


attachments: "WeakKeyDictionary[Any, Attachment]" = WeakKeyDictionary()
_paused: ContextVar[frozenset[int]] = ContextVar("diffcache_paused", default=frozenset())


def attachment_of(target: object) -> Attachment | None:
    """That of the target itself, or of the one pipeline through which a denoiser is accelerated."""
    if not isinstance(target, nn.Module):
        return attachments.get(target) if can_be_key(target) else None
    plain = uncompiled(target)
    own = attachments.get(target) or attachments.get(plain)
    users = users_of(plain)
    return own or (users[0] if len(users) == 1 else None)


def users_of(module: nn.Module) -> list[Attachment]:
    """The attachments on whose behalf a module's class was swapped."""
    return [attachment for attachment in list(attachments.values()) if module in attachment.modules]


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


def is_paused(*targets: object) -> bool:
    """Whether any of these is paused in this context."""
    return bool(_paused.get() & set(map(id, targets)))


def anything_is_paused() -> bool:
    return bool(_paused.get())


@contextmanager
def reporting(scope: Scope, attachment: Attachment | None) -> Iterator[None]:
    """The scope's records become the attachment's when it is left, however that happens."""
    try:
        yield
    finally:
        if attachment is not None:
            attachment.records = scope.records


def can_be_key(target: object) -> bool:
    """Whether a target can be remembered without being kept alive."""
    try:
        hash(target)
    except TypeError:
        return False
    return type(target).__weakrefoffset__ != 0
