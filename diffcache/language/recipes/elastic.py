"""Elastic-Cache (arXiv 2510.14973): a sliding window; layers above one whose attention drifts are refreshed."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from diffcache.language.backbones.base import Net
from diffcache.language.cache import TokenKVCache
from diffcache.language.recipes.base import LanguageConfig
from diffcache.language.report import LanguageReport
from diffcache.language.sampler.canvas import Canvas
from diffcache.language.walks.attention_drift import AttentionDriftWalk, DriftRule
from diffcache.method_config import method


@method
@dataclass(frozen=True, kw_only=True)
class ElasticCacheConfig(LanguageConfig):
    """Computes the first masks, the tokens just written, and the most attended tokens, whose drift says when to refresh.

    Defaults are the authors'. Unlike their code it takes batches and padding: texts in a batch are refreshed together,
    when the one that drifts most needs it.

    Attributes:
        threshold: gamma, the cosine between a tracked token's old and new attention below which the layers above are
            refreshed. 1.01 refreshes at every call, -1.01 never.
        window: masks that are computed, and may be committed.
        tracked: most attended tokens that each layer tracks.
        refresh: "immediate": in the call that measures the drift (the original rule; one more read from the device for each call,
            and the refreshed layers are computed twice in it). "delayed": in the next call.
        axis: what the cosine runs over, "heads" (as the authors coded it) or "keys".
    """

    name: ClassVar[str] = "elastic-cache"
    looks_into_layers: ClassVar[bool] = True
    whole_text: ClassVar[bool] = True

    threshold: float = 0.9
    window: int = 16
    tracked: int = 1
    refresh: str = "immediate"
    axis: str = "heads"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("threshold", -2)
        self._check("window", 1, whole=True)
        self._check("tracked", 1, whole=True)
        self._choose("refresh", "immediate", "delayed")
        self._choose("axis", "heads", "keys")

    def features(self, net: Net) -> dict[str, tuple[int, ...]]:
        return {"inputs": (net.width,), "queries": (net.heads, net.head_dim)}

    def walk(self, net: Net, cache: TokenKVCache, report: LanguageReport) -> AttentionDriftWalk:
        rule = DriftRule(self.threshold, self.tracked, self.refresh == "delayed", self.axis == "keys")
        return AttentionDriftWalk(net.parts(), cache, report, rule)

    @property
    def commit_window(self) -> int:
        return self.window

    def full(self, canvas: Canvas) -> bool:
        return False

    def rows(self, canvas: Canvas) -> Tensor:
        return canvas.candidates | canvas.dirty
