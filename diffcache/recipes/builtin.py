"""Registers every method of this package, and says which is the default. A new method needs its own file only."""

from pathlib import Path

from diffcache.config import CacheConfig
from diffcache.method_config import register_all_in
from diffcache.recipes.trajectory import TrajectoryConfig

register_all_in(__package__, Path(__file__).parent)

DEFAULT: CacheConfig = TrajectoryConfig()
"""What `accelerate(pipe)` uses."""
