"""LanguageConfig: what a method for language models is - which rows are computed, and by which walk."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from torch import Tensor, nn

from diffcache.config import CacheConfig, RunFacts
from diffcache.language.backbones.base import Backbone
from diffcache.language.cache import TokenKVCache
from diffcache.language.ledger import Ledger
from diffcache.language.sampler.canvas import Canvas
from diffcache.language.walks.base import Walk
from diffcache.schedulers.errors import ConfigError, TargetError


@dataclass(frozen=True, kw_only=True)
class LanguageConfig(CacheConfig):
    """One method, pure and immutable: the rows of a model call follow from the canvas.

    Attributes:
        warmup_steps: model calls at the start of a run that compute everything. None: none but the first.
        tail_steps: has no meaning here, since the number of model calls is not known beforehand.
        max_consecutive_reuses: model calls in a row that compute only some rows, before one computes all; None for
            no cap.
        cache_dtype, cache_device: have no meaning here: keys and values are kept as the model computes them.

    Raises:
        ConfigError: an option out of range.
    """

    tail_steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tail_steps:
            raise ConfigError(
                f"{self.name}: leave tail_steps at 0, since a language model's number of calls is not known beforehand."
            )
        if self.cache_dtype is not None or self.cache_device is not None:
            raise ConfigError(
                f"{self.name}: leave cache_dtype and cache_device out, since keys and values are kept as they are."
            )

    @abstractmethod
    def full(self, canvas: Canvas) -> bool:
        """Whether this call computes every row in every layer."""

    @abstractmethod
    def rows(self, canvas: Canvas) -> slice | Tensor:
        """What a call computes that is not full: a range, or bool [b, S]. Holds all of the canvas's candidates."""

    def walk(self, net: Backbone, cache: TokenKVCache, ledger: Ledger) -> Walk:
        """How a call goes through the layers: a fresh walk for one run."""
        return Walk(net, cache, ledger)

    def planes(self, net: Backbone) -> dict[str, tuple[int, ...]]:
        """What the cache holds besides keys and values: size for each position and layer, by name."""
        return {}

    def forces_full(self, canvas: Canvas, reuses: int, grown: bool) -> bool:
        """Whether a guard makes the call compute everything: after so many in a row that did not, or in a grown text."""
        cap = self.max_consecutive_reuses
        return grown or canvas.step < (self.warmup_steps or 0) or (cap is not None and reuses >= cap)

    @property
    def candidates(self) -> int | None:
        """How many masks of a text may be committed at most, the first ones; None for all of the block."""
        return None

    def check(self, denoisers: Mapping[str, nn.Module]) -> NoReturn:
        """Refuses denoisers of pictures."""
        raise TargetError(
            f"{self.name} caches the tokens of a masked-diffusion language model: choose another method for this "
            f"{type(next(iter(denoisers.values()))).__name__}."
        )

    def scheduler(self, run: RunFacts) -> NoReturn:
        """There is none: rows are decided, not ticks."""
        raise TargetError(
            f"{self.name} has no cache scheduler: it decides about rows of a text, not about ticks."
        )

    def warmup(self, run: RunFacts) -> int:
        return 0
