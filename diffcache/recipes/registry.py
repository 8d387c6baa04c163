"""The methods by name. One line each: nothing else has to know of a new one."""

from diffcache.config import CacheConfig
from diffcache.language.recipes.block_causal import BlockCausalConfig
from diffcache.language.recipes.dkv import DKVDecodeConfig, DKVGreedyConfig, DKVPrefillConfig
from diffcache.language.recipes.dllm_cache import DLLMCacheConfig
from diffcache.language.recipes.elastic import ElasticCacheConfig
from diffcache.language.recipes.everything import NoneConfig
from diffcache.language.recipes.fast_dllm import DualConfig, PrefixConfig, VicinityConfig
from diffcache.recipes.budget import BudgetConfig
from diffcache.recipes.curvature import CurvatureConfig
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

FEATURE_METHODS: dict[str, type[CacheConfig]] = {
    method.name: method
    for method in (
        CurvatureConfig,
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

LANGUAGE_METHODS: dict[str, type[CacheConfig]] = {
    method.name: method
    for method in (
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

METHODS: dict[str, type[CacheConfig]] = {**FEATURE_METHODS, **LANGUAGE_METHODS}

DEFAULT: CacheConfig = CurvatureConfig()
"""What `accelerate(pipe)` uses."""

LANGUAGE_DEFAULT: CacheConfig = DKVDecodeConfig(interval=64, ahead=False)
"""What `accelerate(model)` uses for a language model."""
