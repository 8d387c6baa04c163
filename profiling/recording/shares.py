"""Shares of the full run's work, as users ask for them."""

import math
from typing import Any

from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.numbers_given import is_number

SLACK = 1e-6
"""Shares of the work that differ by less are the same."""


class TooLittle(ConfigError):
    """A share of the work that a method cannot get down to.

    Args:
        message: what to do instead.
        least: the share that it can get down to; None where that is not known.
    """

    def __init__(self, message: str, least: float | None = None) -> None:
        super().__init__(message)
        self.least = least


def check_share(compute: Any) -> None:
    """Refuses what is no share of the full run's work.

    Raises:
        ConfigError: it is not a number above 0 and at most 1.
    """
    if not is_number(compute) or not 0 < compute <= 1:
        raise ConfigError(
            f"compute must be a share of the full run's work, above 0 and at most 1, not {compute!r}: 0.5 is half."
        )


def ticks_for(compute: float, ticks: int) -> int:
    """How many ticks of a run a share of its work pays for.

    Raises:
        ConfigError: no share.
        TooLittle: one that does not pay for one tick.
    """
    check_share(compute)
    count = math.floor(compute * ticks + 1e-9)
    if not count:
        raise TooLittle(
            f"compute={compute} does not pay for one of {ticks} ticks: give at least {1 / ticks:.3f}.",
            1 / ticks,
        )
    return count
