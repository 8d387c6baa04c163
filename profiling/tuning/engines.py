"""The engines of `tune` by name: those that this package brings, and what others have registered."""

from diffcache.profiling.tuning import calibrated, planned, searched  # noqa: F401 (they register their engines)
from diffcache.profiling.tuning.engine import ENGINES

__all__ = ["ENGINES"]
