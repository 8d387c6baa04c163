"""Block caches: Fast-dLLM's two (arXiv 2505.22618) and the vicinity refresh of dInfer (arXiv 2510.08666)."""

from dataclasses import dataclass
from typing import ClassVar

from diffcache.language.recipes.base import LanguageConfig
from diffcache.language.sampler.canvas import Canvas
from diffcache.method_config import method


@method
@dataclass(frozen=True, kw_only=True)
class PrefixConfig(LanguageConfig):
    """Fast-dLLM's prefix cache: everything at a block's first call, then the block and all that follows."""

    name: ClassVar[str] = "fast-dllm-prefix"

    def full(self, canvas: Canvas) -> bool:
        return canvas.block_step == 0

    def rows(self, canvas: Canvas) -> slice:
        return slice(canvas.block.start, canvas.length)


@method
@dataclass(frozen=True, kw_only=True)
class DualConfig(LanguageConfig):
    """Fast-dLLM's dual cache: everything at a block's first call, then the block alone."""

    name: ClassVar[str] = "fast-dllm-dual"

    def full(self, canvas: Canvas) -> bool:
        return canvas.block_step == 0

    def rows(self, canvas: Canvas) -> slice:
        return slice(canvas.block.start, canvas.block.stop)


@method
@dataclass(frozen=True, kw_only=True)
class VicinityConfig(LanguageConfig):
    """The dual cache with some positions on both sides of the block, and some full calls at the start (published: 4).

    Attributes:
        before, after: positions in front of the block and behind it that are computed with it (published: 16).
    """

    name: ClassVar[str] = "vicinity"

    warmup_steps: int | None = 4
    before: int = 16
    after: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("before", 0, whole=True)
        self._check("after", 0, whole=True)

    def full(self, canvas: Canvas) -> bool:
        return canvas.block_step == 0

    def rows(self, canvas: Canvas) -> slice:
        return slice(
            max(0, canvas.block.start - self.before), min(canvas.length, canvas.block.stop + self.after)
        )
