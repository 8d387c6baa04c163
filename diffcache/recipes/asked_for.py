"""The method that a user asks for: by its name, a config, a schedule, a folder, a YAML file, or a speed-up."""

import difflib
import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from diffcache.config import CacheConfig
from diffcache.host.identity import refuse_others
from diffcache.method_config import MethodConfig
from diffcache.recipes.even import EvenConfig
from diffcache.recipes.replay import ReplayConfig
from diffcache.recipes.trajectory import TrajectoryConfig
from diffcache.schedulers.artifact import CONFIG_NAME, saved_in
from diffcache.schedulers.config_file import config_models, is_yaml, load_yaml
from diffcache.schedulers.errors import ConfigError, TargetError
from diffcache.schedulers.schedule import Schedule
from diffcache.trajectory.control import TYPICAL

logger = logging.getLogger("diffcache")

IN_PERCENT = "threshold=%g allows an expected error of %g %%: if it was meant in percent, write threshold=%g, which allows %g %%."

WITH_SPEEDUP: Mapping[str, type[CacheConfig]] = {kind.name: kind for kind in (TrajectoryConfig, EvenConfig)}
"""Methods that `speedup=` is an option of; the first is the one that it means by itself."""


def asked_for(
    config: MethodConfig | Schedule | str | Path | None,
    options: dict[str, Any],
    default: MethodConfig,
    kind: type[MethodConfig],
) -> MethodConfig:
    """The method that `accelerate(target, config, **options)` asks for.

    Args:
        config, options: as given to `accelerate`.
        default: what None stands for.
        kind: methods of this kind are named where there is none of the name that was given.

    Raises:
        ConfigError, ScheduleError: as `accelerate`.
    """
    if isinstance(config, (str, Path)) and is_yaml(config):
        config = _written(Path(config), default, kind)
    if isinstance(config, (str, Path)) and _is_saved(config):
        config = _loaded(config)
    if isinstance(config, Schedule):
        return ReplayConfig.of(schedule=config, **options)
    if isinstance(config, str):
        return _method(config, kind).of(**options)
    chosen = default if config is None else config
    if not isinstance(chosen, MethodConfig):
        given: Any = config
        if type(given) in (int, float):
            raise ConfigError(
                f"config must be a method's name, not {given}: write speedup={given} for a speed-up."
            )
        what = f"the class {config.__name__}" if isinstance(config, type) else f"a {type(config).__name__}"
        raise ConfigError(f"config must be a method's name, a CacheConfig or a Schedule, not {what}.")
    return chosen.replace(**options)


def attachable(
    config: MethodConfig | Schedule | str | Path | None,
    options: dict[str, Any],
    default: CacheConfig,
    denoisers: Mapping[str, nn.Module],
) -> CacheConfig:
    """The method that `accelerate(target, config, **options)` attaches to these denoisers.

    Args:
        config, options, default: see `asked_for`.
        denoisers: by name; uncompiled.

    Raises:
        ConfigError, ScheduleError, TargetError: as `accelerate`.
    """
    chosen = asked_for(config, options, default, CacheConfig)
    from_folder = isinstance(config, (str, Path)) and not is_yaml(config) and _is_saved(config)
    if from_folder and isinstance(chosen, CacheConfig) and not isinstance(chosen, ReplayConfig):
        models = config_models(str(config))
        # A single denoiser may be attached to by itself, and then has no name of a pipeline's.
        alone = len(models) == len(denoisers) == 1
        refuse_others(
            "config", dict(zip(denoisers, models.values(), strict=True)) if alone else models, denoisers
        )
    if isinstance(chosen, TrajectoryConfig) and chosen.speedup is None and chosen.threshold > 1:
        asked = chosen.threshold
        logger.warning(IN_PERCENT, asked, 100 * asked / TYPICAL, asked / 100, asked / TYPICAL)
    return _for_denoisers(chosen, denoisers)


def at_speedup(config: Any, speedup: float, options: dict[str, Any]) -> CacheConfig:
    """The method that `accelerate(target, config, speedup=speedup, **options)` asks for.

    Raises:
        ConfigError: as `accelerate`.
    """
    refuse_beside(config, WITH_SPEEDUP)
    if options.get("threshold"):
        logger.warning(
            "threshold= is not looked at beside speedup=, which says how much is computed: leave one of them out."
        )
    return WITH_SPEEDUP[config or TrajectoryConfig.name].of(speedup=speedup, **options)


def refuse_beside(given: Any, allowed: Collection[str] = ()) -> None:
    """Refuses what is given beside `speedup=` or `quality=`, unless it is allowed there.

    Raises:
        ConfigError: it is neither None nor one of `allowed`.
    """
    if given not in (None, *allowed):
        methods = " and ".join(WITH_SPEEDUP)
        raise ConfigError(
            f"{_called(given)} takes no speedup= and no quality=: leave one or the other out. speedup= goes alone or with the methods {methods}, and quality= goes alone; "
            "a schedule has its speed-up already."
        )


def _called(given: Any) -> str:
    """What a sentence calls a method that somebody gave, by name, folder, config or schedule."""
    return str(given) if isinstance(given, (str, Path)) else f"the {type(given).__name__}"


def _is_saved(name: str | Path) -> bool:
    """Whether this stands for a folder or a hub repository, and not for a method's name."""
    return isinstance(name, Path) or (
        name not in MethodConfig.methods() and name != "" and ("/" in name or Path(name).is_dir())
    )


def _written(path: Path, default: MethodConfig, kind: type[MethodConfig]) -> MethodConfig:
    """The method of a YAML file, with its options; the default one where the file names none."""
    name, options = load_yaml(path)
    try:
        return _method(default.name if name is None else name, kind).of(**options)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _loaded(name: str | Path) -> MethodConfig | Schedule:
    """What `save_pretrained` has written into a folder or a hub repository."""
    saved = saved_in(name)
    return MethodConfig.from_pretrained(name) if saved == CONFIG_NAME else Schedule.from_pretrained(name)


def _for_denoisers(config: MethodConfig, denoisers: Mapping[str, nn.Module]) -> CacheConfig:
    """The method that is attached to these denoisers: the one that was chosen, or what was calibrated for it."""
    if not isinstance(config, CacheConfig):
        raise TargetError(
            f"{config.name} caches the tokens of a masked-diffusion language model: choose another method for this "
            f"{type(next(iter(denoisers.values()))).__name__}."
        )
    resolved = config.resolved()
    resolved.check(denoisers)
    return resolved


def _method(name: str, kind: type[MethodConfig]) -> type[MethodConfig]:
    """The method of this name; where there is none, those of a kind are named."""
    if name in MethodConfig.methods():
        return MethodConfig.methods()[name]
    close = difflib.get_close_matches(name.lower(), kind.methods(), n=1)
    if close:
        raise ConfigError(f"there is no method {name!r}: did you mean {close[0]!r}?")
    raise ConfigError(
        f"there is no method {name!r}, and no folder of that name here: choose one of {', '.join(kind.methods())}."
    )
