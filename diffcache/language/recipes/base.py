"""LanguageConfig: what a method for language models is: which rows are computed, and by which walk."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from diffcache.language.backbones.base import Net
from diffcache.language.cache import TokenKVCache
from diffcache.language.report import LanguageReport
from diffcache.language.sampler.canvas import Canvas
from diffcache.language.walks.base import LayerWalk, Walk
from diffcache.method_config import MethodConfig


@dataclass(frozen=True, kw_only=True)
class LanguageConfig(MethodConfig):
    """One method for language models. The canvas alone decides which rows a model call computes.

    Attributes:
        warmup_steps: model calls at the start of a run that compute everything. None: none but the first.
        max_consecutive_reuses: model calls in a row that compute only some rows, before one computes all; None for
            no cap.
        imposes_blocks: a block sees nothing behind itself, whatever the model attends.
        looks_into_layers: the method calls the model part by part.
        whole_text: the method needs attention over the whole text, not in blocks.

    Raises:
        ConfigError: an option out of range.
    """

    imposes_blocks: ClassVar[bool] = False
    looks_into_layers: ClassVar[bool] = False
    whole_text: ClassVar[bool] = False

    warmup_steps: int | None = None
    max_consecutive_reuses: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("warmup_steps", 0, whole=True)
        self._check("max_consecutive_reuses", 1, whole=True)

    @abstractmethod
    def full(self, canvas: Canvas) -> bool:
        """Whether this call computes every row in every layer."""

    @abstractmethod
    def rows(self, canvas: Canvas) -> slice | Tensor:
        """The rows of a call that is not full: a range, or bool [b, S]. All of the canvas's candidates are among them."""

    def walk(self, net: Net, cache: TokenKVCache, report: LanguageReport) -> Walk:
        """How a call computes rows: a fresh walk for one run. A method that looks into layers takes `net.parts()`."""
        from diffcache.language.backbones.native import Native
        from diffcache.language.walks.own_forward import OwnForwardWalk

        if isinstance(net, Native):
            return OwnForwardWalk(net, cache, report)
        return LayerWalk(net.parts(), cache, report)

    def features(self, net: Net) -> dict[str, tuple[int, ...]]:
        """What the cache stores besides keys and values: size for each position and layer, by name."""
        return {}

    def forces_full(self, canvas: Canvas, reuses: int, grown: bool) -> bool:
        """Whether a guard makes the call compute everything: in the warm-up, after so many calls in a row that did not, or
        where the text has grown."""
        cap = self.max_consecutive_reuses
        return grown or canvas.step < (self.warmup_steps or 0) or (cap is not None and reuses >= cap)

    @property
    def commit_window(self) -> int | None:
        """Only the first so many masks of a text may be committed; None for all of the block."""
        return None
