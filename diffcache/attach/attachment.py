"""What is attached to a pipeline or a denoiser: its method, and the records of its last call."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from diffcache.config import CacheConfig
from diffcache.engine.scopes import Scope
from diffcache.hooks.attachments import Attachment, attachment_of
from diffcache.host.compiled import uncompiled
from diffcache.reports.records import RunRecord
from diffcache.reports.run_report import RunReport


@dataclass(frozen=True)
class Fitted:
    """A method that keeps to a bound, and what had to be done for that."""

    config: CacheConfig
    notes: tuple[str, ...] = ()


@dataclass(eq=False)
class DiffusionAttachment(Attachment):
    """Of a pipeline or a denoiser.

    Attributes:
        config: its method.
        records: of its last call.
        max_cache_bytes: what its runs may hold at once; None for no bound.
        components: the pipeline's denoisers that it is attached to; None for all.
        fitted: the form of its last call, and the method as it was fitted to the bound.
    """

    config: CacheConfig
    records: list[RunRecord] = field(default_factory=list)
    max_cache_bytes: int | None = None
    components: Collection[str] | None = None
    fitted: tuple[Any, Fitted] | None = None

    def report(self) -> RunReport:
        return RunReport(self.config.name, self.config.options(), self.records)

    @contextmanager
    def recording(self, scope: Scope) -> Iterator[None]:
        """The scope's records become the attachment's when it is left, however that happens."""
        try:
            yield
        finally:
            self.records = scope.records


def key_of(target: object) -> object:
    """What a target is registered by: of a module that `torch.compile` wraps, the one inside."""
    return uncompiled(target) if isinstance(target, nn.Module) else target


def diffusion_attachment_of(target: object) -> DiffusionAttachment | None:
    """That of a pipeline or denoiser itself, or of the one pipeline through which a denoiser is accelerated."""
    found = attachment_of(key_of(target))
    return found if isinstance(found, DiffusionAttachment) else None
