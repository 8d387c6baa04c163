"""Block-causal caching (LLaDA2, arXiv 2512.15745): what lies before the block is computed once."""

from dataclasses import dataclass
from typing import ClassVar

from diffcache.language.recipes.base import LanguageConfig
from diffcache.language.sampler.canvas import Canvas
from diffcache.method_config import method


@method
@dataclass(frozen=True, kw_only=True)
class BlockCausalConfig(LanguageConfig):
    """Computes the block, which sees itself and what is before it, never what follows.

    A block's first call also computes the final keys and values of the block before it. An edit or a guard computes all of
    them again. This is exact for models that attend in blocks (LLaDA2, SDAR, Fast-dLLM v2), with blocks of the model's own
    length. For any other model it is an approximation: the prompt is one block, and the masks behind the block are left out.
    """

    name: ClassVar[str] = "block-causal"
    imposes_blocks: ClassVar[bool] = True

    def forces_full(self, canvas: Canvas, reuses: int, grown: bool) -> bool:
        return super().forces_full(canvas, reuses, grown=False)

    def full(self, canvas: Canvas) -> bool:
        return canvas.edited

    def rows(self, canvas: Canvas) -> slice:
        return slice(canvas.unfinished, canvas.length)
