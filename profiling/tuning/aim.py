"""What `tune` is asked for."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.numbers_given import is_number

AT_LEAST = 0.9
"""Share of the samples that must keep a quality, where nothing else is asked for."""


@dataclass(frozen=True)
class Aim:
    """What is asked for: one of a speed-up, a quality on a share of the samples, or a front.

    Raises:
        ConfigError: none or several, or a value out of range.
    """

    speedup: float | None = None
    quality: float | None = None
    front: bool = False
    at_least: float | None = None

    def __post_init__(self) -> None:
        for name in ("speedup", "quality", "at_least"):
            if isinstance(value := getattr(self, name), np.generic):
                object.__setattr__(self, name, value.item())
        if sum((self.speedup is not None, self.quality is not None, self.front)) != 1:
            raise ConfigError("tune() needs either speedup= or quality= (or front=True): pass one of them.")
        if self.quality is not None and not is_number(self.quality):
            raise ConfigError(
                f"quality={self.quality!r}: give a PSNR in dB, such as 35.0, or what objective= measures."
            )
        if self.at_least is not None and self.quality is None:
            raise ConfigError("at_least= is the share of samples that keep a quality: pass quality= as well.")
        if self.at_least is not None and not (is_number(self.at_least) and 0 < self.at_least < 1):
            raise ConfigError(f"at_least={self.at_least!r}: give a share above 0 and below 1, such as 0.9.")
        if self.speedup is not None and not (is_number(self.speedup) and self.speedup >= 1):
            raise ConfigError(f"speedup must be a number >= 1 and finite, not {self.speedup!r}.")

    @property
    def share_of_samples(self) -> float:
        """Of the samples that must keep the quality."""
        return AT_LEAST if self.at_least is None else self.at_least

    def as_json(self) -> dict[str, Any]:
        """What the artifact says that it was made for."""
        if self.quality is not None:
            return {"quality": self.quality, "at_least": self.share_of_samples}
        return {"speedup": self.speedup}
