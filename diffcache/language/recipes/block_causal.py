"""Block-causal caching (LLaDA2, arXiv 2512.15745): what lies before the block is computed once."""

from dataclasses import dataclass
from typing import ClassVar

from diffcache.language.backbones.base import Backbone
from diffcache.language.cache import TokenKVCache
from diffcache.language.recipes.base import LanguageConfig
from diffcache.language.report import LanguageReport
from diffcache.language.sampler.canvas import Canvas
from diffcache.language.walks.blockwise import BlockWalk
from diffcache.method_config import method


@method
@dataclass(frozen=True, kw_only=True)
class BlockCausalConfig(LanguageConfig):
    """Computes the block, which sees itself and what is before it, never what follows.

    One more pass for each finished block, and one for the prompt, computes its final keys and values. An edit or a guard
    computes them all again. This is exact for a model that was trained with blocks that see no later block, if it takes
    the prompt as one block. For any other model it is an approximation: the masks behind the block are left out.
    """

    name: ClassVar[str] = "block-causal"

    def walk(self, net: Backbone, cache: TokenKVCache, report: LanguageReport) -> BlockWalk:
        return BlockWalk(net, cache, report)

    def forces_full(self, canvas: Canvas, reuses: int, grown: bool) -> bool:
        return super().forces_full(canvas, reuses, grown=False)

    def full(self, canvas: Canvas) -> bool:
        return canvas.edited

    def rows(self, canvas: Canvas) -> slice:
        return slice(canvas.block.start, canvas.block.stop)
