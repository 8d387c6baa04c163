"""dLLM-Cache (arXiv 2506.06295): refreshes prompt and answer at intervals, and the rows whose values drift in between."""

from dataclasses import dataclass
from typing import ClassVar

from diffcache.language.backbones.base import Net
from diffcache.language.cache import TokenKVCache
from diffcache.language.recipes.base import LanguageConfig
from diffcache.language.report import LanguageReport
from diffcache.language.sampler.canvas import Canvas
from diffcache.language.walks.value_drift import Refreshes, ValueDriftWalk
from diffcache.method_config import method
from diffcache.schedulers.errors import ConfigError


@method
@dataclass(frozen=True, kw_only=True)
class DLLMCacheConfig(LanguageConfig):
    """Stores keys, values and what each layer adds; in each layer the rows whose values changed most are computed.

    After an edit everything is computed once, because the edited row need not be among those that changed most.

    Attributes:
        prompt_interval: calls between two refreshes of the prompt, K_p (published for LLaDA-Instruct: 50).
        interval: calls between two refreshes of the answer, K_r (published: 7).
        ratio: share of the answer that a layer computes at other calls, rho (published: 0.25); 0 looks at no values there.
    """

    name: ClassVar[str] = "dllm-cache"
    looks_into_layers: ClassVar[bool] = True

    prompt_interval: int = 50
    interval: int = 7
    ratio: float = 0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("prompt_interval", 1, whole=True)
        self._check("interval", 1, whole=True)
        self._check("ratio", 0)
        if self.ratio > 1:
            raise ConfigError(f"dllm-cache: ratio is a share between 0 and 1, not {self.ratio!r}.")

    def features(self, net: Net) -> dict[str, tuple[int, ...]]:
        return {"changes": (net.width,)}

    def walk(self, net: Net, cache: TokenKVCache, report: LanguageReport) -> ValueDriftWalk:
        refreshes = Refreshes(self.prompt_interval, self.interval, self.ratio)
        return ValueDriftWalk(net.parts(), cache, report, refreshes)

    def full(self, canvas: Canvas) -> bool:
        due = canvas.step % self.prompt_interval == 0 and canvas.step % self.interval == 0
        return due or canvas.edited

    def rows(self, canvas: Canvas) -> slice:
        return slice(0, canvas.length)
