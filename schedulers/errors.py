"""The errors that diffcache raises when it is used wrongly: one sentence each, which says what to do instead."""


class DiffcacheError(ValueError):
    """Base of all errors that diffcache raises on purpose."""


class TargetError(DiffcacheError, TypeError):
    """The target cannot be accelerated, or is not."""


class ConfigError(DiffcacheError, TypeError):
    """An unknown method or option, or a value out of range. Also a TypeError, as for any unknown keyword."""


class ScheduleError(DiffcacheError):
    """What was saved cannot be read, or a schedule does not belong to this model or run."""


def from_extra(extra: str) -> str:
    """How to install what one of the package's extras brings, for a sentence."""
    return f"pip install '.[{extra}]' in a checkout of diffcache"
