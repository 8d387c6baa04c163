"""The methods by name. One line each: nothing else has to know of a new one."""

from diffcache.config import CacheConfig
from diffcache.recipes.easycache import EasyCacheConfig
from diffcache.recipes.uniform import UniformConfig

METHODS: dict[str, type[CacheConfig]] = {
    method.name: method
    for method in (
        EasyCacheConfig,
        UniformConfig,
    )
}

DEFAULT: CacheConfig = UniformConfig(interval=2, order=1, basis="output", warmup_steps=3, watch_bound=0.5)
"""What `accelerate(pipe)` uses."""
