"""A method at some of its sites is a method like any other: a config that derives from another one."""

from __future__ import annotations

from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from diffcache import CacheConfig, ConfigError, EasyCacheConfig, MethodConfig, UniformConfig
from diffcache.config import RunFacts
from diffcache.planning.memory_bound import AtSites
from diffcache.recipes.derived_config import DerivedConfig

RUN = RunFacts(
    "FluxTransformer2DModel", num_ticks=28, denoiser="transformer", blocks={"transformer_blocks": 4}
)
OTHER = RunFacts("FluxTransformer2DModel", num_ticks=28, denoiser="transformer_2")
SITES = frozenset({("transformer", "b"), ("transformer", "a"), ("transformer_2", "c")})
SAVING = {"save_pretrained", "push_to_hub"}
"""What works by the derived config's own name and options."""


def at_sites(base: CacheConfig) -> AtSites:
    return AtSites(base=base, kept=SITES)


def test_it_is_the_base_with_other_sites() -> None:
    base = UniformConfig(interval=3, warmup_steps=2, cache_dtype="int8", watch_bound=0.5)
    config = at_sites(base)
    assert isinstance(config, CacheConfig)
    assert config.sites(RUN) == ("a", "b")
    assert config.sites(OTHER) == ("c",)
    assert (config.name, config.options()) == (base.name, base.options())
    assert (config.cache_dtype, config.watch_bound, config.warmup_steps) == ("int8", 0.5, 2)
    assert config.guards(RUN) == base.guards(RUN)
    assert config.resolved() == config


def test_replace_keeps_the_sites_and_changes_the_base() -> None:
    config = at_sites(UniformConfig(interval=3))
    changed = config.replace(cache_dtype="bfloat16", interval=2)
    assert changed == at_sites(UniformConfig(interval=2, cache_dtype="bfloat16"))
    assert changed.sites(RUN) == ("a", "b")
    assert changed.cache_dtype == "bfloat16"
    with pytest.raises(ConfigError, match="uniform has no option 'kept'"):
        config.replace(kept=frozenset())


def test_it_is_saved_as_its_base(tmp_path: Path) -> None:
    base = EasyCacheConfig(threshold=0.3)
    assert MethodConfig.from_pretrained(at_sites(base).save_pretrained(tmp_path)) == base


@pytest.mark.parametrize("kind", CacheConfig.methods().values(), ids=CacheConfig.methods())
def test_everything_else_is_the_bases(kind: type[CacheConfig]) -> None:
    base = kind(warmup_steps=5, tail_steps=3, max_consecutive_reuses=4)
    config = at_sites(base)
    for name, member in public(CacheConfig).items():
        if isinstance(member, property):
            assert getattr(config, name) == getattr(base, name), name
    for name in ("guards", "warmup", "most_ticks"):
        assert getattr(config, name)(RUN) == getattr(base, name)(RUN), name
    for name in ("scheduler", "predictor_for", "guidance", "corrector", "tap", "format"):
        assert type(getattr(config, name)(RUN)) is type(getattr(base, name)(RUN)), name


def test_whatever_a_method_may_override_is_asked_of_the_base() -> None:
    missing = public(CacheConfig).keys() - vars(DerivedConfig).keys() - SAVING
    assert missing == set()


def public(cls: type) -> dict[str, Any]:
    """Methods and properties of instances, inherited ones too."""
    members = {name: getattr(cls, name) for name in dir(cls) if not name.startswith("_")}
    return {name: one for name, one in members.items() if isinstance(one, (FunctionType, property))}
