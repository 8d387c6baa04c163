"""What is attached to a pipeline or a denoiser: its method, and the records of its last call."""

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakSet

from torch import nn

from diffcache.config import CacheConfig
from diffcache.engine.scopes import Scope
from diffcache.hooks.attachments import Attachment, attachment_of
from diffcache.host.compiled import uncompiled
from diffcache.reports.records import RunRecord
from diffcache.reports.run_report import RunReport

logger = logging.getLogger("diffcache")

_warned: "WeakSet[Any]" = WeakSet()
"""Targets of which it was logged what reuse costs where the noise scheduler adds fresh noise."""


@dataclass(frozen=True)
class CallConfig:
    """A method as one call of a pipeline needs it.

    Attributes:
        config: the method.
        notes: what was changed for the call, in sentences for the report.
    """

    config: CacheConfig
    notes: tuple[str, ...] = ()


class Chooser(Protocol):
    """Chooses the config for each call of a pipeline."""

    def config_for(self, pipeline: Any, call: Mapping[str, Any]) -> CallConfig:
        """The config for a call with these arguments.

        Raises:
            ConfigError: there is none for this call.
        """


@dataclass(eq=False)
class DiffusionAttachment(Attachment):
    """Of a pipeline or a denoiser.

    Attributes:
        config: its method.
        last: the report of the target's last call, which names the method that ran; None before the first.
        chooser: chooses the config for each call, such as one within a bound on memory; None: `config` for all of them.
        components: the pipeline's denoisers that it is attached to; None for all.
    """

    config: CacheConfig
    last: RunReport | None = None
    chooser: Chooser | None = None
    components: Collection[str] | None = None

    def report(self) -> RunReport:
        last = self.last or RunReport(self.config.name, self.config.options(), [])
        return RunReport(last.method, last.options, last.records)

    def config_for(self, pipeline: Any, call: Mapping[str, Any]) -> CallConfig:
        """The config for a call of the pipeline with these arguments."""
        if self.chooser is None:
            return CallConfig(self.config.for_call(call))
        return self.chooser.config_for(pipeline, call)

    @contextmanager
    def recording(self, target: object, scope: Scope) -> Iterator[None]:
        """A call of the target: when it is left, however that happens, its report is the target's last one.

        It names this attachment's method, also where a callback has attached another method meanwhile. Where the pipeline has called
        itself and nothing else, the report of that call stays.
        """
        before = self.last
        try:
            yield
        finally:
            if scope.records or self.last is before:
                self._keep(target, scope.records)

    def _keep(self, target: object, records: list[RunRecord]) -> None:
        """A call of the target is over."""
        self.last = RunReport(self.config.name, self.config.options(), records)
        if self.last.cost_of_noise is not None and key_of(target) not in _warned:
            _warned.add(key_of(target))
            logger.warning("%s.", self.last.cost_of_noise)
        now = diffusion_attachment_of(target)
        if records and now is not None and now is not self:
            records[-1].notes.append(
                f"{now.config.name} was attached during this call: it runs from the next one on"
            )
            now.last = self.last


def key_of(target: object) -> object:
    """What a target is registered by: of a module that `torch.compile` wraps, the one inside."""
    return uncompiled(target) if isinstance(target, nn.Module) else target


def diffusion_attachment_of(target: object) -> DiffusionAttachment | None:
    """That of a pipeline or denoiser itself, or of the one pipeline through which a denoiser is accelerated."""
    found = attachment_of(key_of(target))
    return found if isinstance(found, DiffusionAttachment) else None
