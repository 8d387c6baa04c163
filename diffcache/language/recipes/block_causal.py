"""Block-causal caching (LLaDA2, arXiv 2512.15745): what lies before the block is computed once and final."""

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

    One more pass for each finished block (and one for the prompt) makes its keys and values final; an edit, or a guard,
    makes them all anew. Exact for a model that was trained with blocks which see no later block, as long as the prompt
    is one block to it; for any other an approximation that leaves out the masks behind the block.
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
