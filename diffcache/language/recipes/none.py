"""No cache: every call computes every row. What other methods are measured against."""

from dataclasses import dataclass
from typing import ClassVar

from diffcache.language.recipes.base import LanguageConfig
from diffcache.language.sampler.canvas import Canvas
from diffcache.method_config import method


@method
@dataclass(frozen=True, kw_only=True)
class NoneConfig(LanguageConfig):
    """Computes everything, but through the cache. It writes exactly the tokens of the plain model."""

    name: ClassVar[str] = "none"

    def full(self, canvas: Canvas) -> bool:
        return True

    def rows(self, canvas: Canvas) -> slice:
        return slice(0, canvas.length)
