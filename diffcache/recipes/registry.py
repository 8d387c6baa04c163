"""The methods by name. One line each: nothing else has to know of a new one."""

from diffcache.config import CacheConfig
from diffcache.language.recipes.block_causal import BlockCausalConfig
from diffcache.language.recipes.dkv import DKVDecodeConfig, DKVGreedyConfig, DKVPrefillConfig
from diffcache.language.recipes.dllm_cache import DLLMCacheConfig
from diffcache.language.recipes.elastic import ElasticCacheConfig
from diffcache.language.recipes.everything import NoneConfig
from diffcache.language.recipes.fast_dllm import DualConfig, PrefixConfig, VicinityConfig
from diffcache.recipes.easycache import EasyCacheConfig
from diffcache.recipes.uniform import UniformConfig

METHODS: dict[str, type[CacheConfig]] = {
    method.name: method
    for method in (
        EasyCacheConfig,
        UniformConfig,
        NoneConfig,
        DKVDecodeConfig,
        DKVGreedyConfig,
        DKVPrefillConfig,
        ElasticCacheConfig,
        PrefixConfig,
        DualConfig,
        VicinityConfig,
        DLLMCacheConfig,
        BlockCausalConfig,
    )
}

DEFAULT: CacheConfig = UniformConfig(interval=2, order=1, basis="output", warmup_steps=3, watch_bound=0.5)
"""What `accelerate(pipe)` uses."""

LANGUAGE_DEFAULT: CacheConfig = ElasticCacheConfig()
"""What `accelerate(model)` uses for a language model."""
