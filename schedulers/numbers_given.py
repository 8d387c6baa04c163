"""What users pass as a number."""

import math
from typing import Any, TypeGuard

from diffcache.schedulers.errors import ConfigError


def is_count(value: Any) -> TypeGuard[int]:
    """Whether it is a whole number from 1; True is none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def is_number(value: Any) -> TypeGuard[float]:
    """Whether it is a finite number; True is none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def check_bytes(bound: Any) -> None:
    """Refuses what is no bound on a cache's bytes.

    Raises:
        ConfigError: it is no whole number from 1.
    """
    if not is_count(bound):
        raise ConfigError(f"max_cache_bytes must be a whole number of bytes above 0, not {bound!r}.")
