"""The methods by name. One line each: nothing else has to know of a new one."""

from diffcache.config import CacheConfig
from diffcache.recipes.budget import BudgetConfig
from diffcache.recipes.deepcache import DeepCacheConfig
from diffcache.recipes.easycache import EasyCacheConfig
from diffcache.recipes.ertacache import ERTACacheConfig
from diffcache.recipes.fastercache import FasterCacheConfig
from diffcache.recipes.fbcache import FBCacheConfig
from diffcache.recipes.fora import FORAConfig
from diffcache.recipes.magcache import MagCacheConfig
from diffcache.recipes.pab import PABConfig
from diffcache.recipes.profilingdit import ProfilingDiTConfig
from diffcache.recipes.taylorseer import TaylorSeerConfig
from diffcache.recipes.teacache import TeaCacheConfig
from diffcache.recipes.tgate import TGATEConfig
from diffcache.recipes.uniform import UniformConfig

METHODS: dict[str, type[CacheConfig]] = {
    method.name: method
    for method in (
        UniformConfig,
        BudgetConfig,
        EasyCacheConfig,
        FBCacheConfig,
        TeaCacheConfig,
        MagCacheConfig,
        TaylorSeerConfig,
        FORAConfig,
        DeepCacheConfig,
        PABConfig,
        FasterCacheConfig,
        TGATEConfig,
        ERTACacheConfig,
        ProfilingDiTConfig,
    )
}

DEFAULT: CacheConfig = UniformConfig(interval=2, order=1, basis="output", warmup_steps=3, watch_bound=0.5)
"""What `accelerate(pipe)` uses."""
