"""The options in a noise scheduler's configuration."""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any


def option_of(noise_scheduler: Any, name: str) -> Any:
    """An option of its configuration; None where it has none.

    `from_config` keeps what the configuration of another class had, too; what its own `__init__` does not take is none of its options.
    """
    if hasattr(noise_scheduler, "from_config") and name not in _options(type(noise_scheduler).__init__):
        return None
    return getattr(getattr(noise_scheduler, "config", None), name, None)


@cache
def _options(init: Callable[..., None]) -> frozenset[str]:
    return frozenset(inspect.signature(init).parameters)
