"""Feature caching for diffusion models: `pipe = accelerate(pipe)`.

Names are imported when they are first used, so that `import diffcache` and `import diffcache.kernels.x` stay light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diffcache.api import accelerate, methods, paused, plan, report, restore
    from diffcache.attach.attach import denoising_run
    from diffcache.command.compare import compare
    from diffcache.command.demo import demo
    from diffcache.command.evaluate import evaluate
    from diffcache.command.inspect_model import inspect
    from diffcache.command.show import show
    from diffcache.config import CacheConfig
    from diffcache.discovery.discover import discover
    from diffcache.discovery.sites import SiteTable
    from diffcache.host.parallel import decide_together
    from diffcache.language.loading import load_language_model
    from diffcache.language.recipes.base import LanguageConfig
    from diffcache.language.sampler.sampling import Generation, generate, stream
    from diffcache.method_config import MethodConfig, method
    from diffcache.profiling.tuning.tune import tune
    from diffcache.recipes.easycache import EasyCacheConfig
    from diffcache.recipes.trajectory import TrajectoryConfig
    from diffcache.recipes.uniform import UniformConfig
    from diffcache.reports.run_report import RunReport
    from diffcache.rollouts.memory import RolloutMemory
    from diffcache.rollouts.rollout import rollout
    from diffcache.schedulers.errors import ConfigError, DiffcacheError, ScheduleError, TargetError
    from diffcache.schedulers.schedule import Schedule
    from diffcache.server.serving import serving

__version__ = "0.1.0"

_HOME = {
    "accelerate": "diffcache.api",
    "methods": "diffcache.api",
    "plan": "diffcache.api",
    "report": "diffcache.api",
    "restore": "diffcache.api",
    "decide_together": "diffcache.host.parallel",
    "compare": "diffcache.command.compare",
    "demo": "diffcache.command.demo",
    "denoising_run": "diffcache.attach.attach",
    "evaluate": "diffcache.command.evaluate",
    "inspect": "diffcache.command.inspect_model",
    "show": "diffcache.command.show",
    "discover": "diffcache.discovery.discover",
    "SiteTable": "diffcache.discovery.sites",
    "paused": "diffcache.api",
    "Generation": "diffcache.language.sampler.sampling",
    "generate": "diffcache.language.sampler.sampling",
    "load_language_model": "diffcache.language.loading",
    "stream": "diffcache.language.sampler.sampling",
    "tune": "diffcache.profiling.tuning.tune",
    "CacheConfig": "diffcache.api",  # which registers the methods that from_pretrained may find
    "LanguageConfig": "diffcache.api",
    "MethodConfig": "diffcache.api",
    "method": "diffcache.method_config",
    "EasyCacheConfig": "diffcache.recipes.easycache",
    "TrajectoryConfig": "diffcache.recipes.trajectory",
    "UniformConfig": "diffcache.recipes.uniform",
    "RunReport": "diffcache.reports.run_report",
    "RolloutMemory": "diffcache.rollouts.memory",
    "rollout": "diffcache.rollouts.rollout",
    "ConfigError": "diffcache.schedulers.errors",
    "DiffcacheError": "diffcache.schedulers.errors",
    "Schedule": "diffcache.schedulers.schedule",
    "ScheduleError": "diffcache.schedulers.errors",
    "serving": "diffcache.server.serving",
    "TargetError": "diffcache.schedulers.errors",
}

__all__ = [
    "CacheConfig",
    "ConfigError",
    "DiffcacheError",
    "EasyCacheConfig",
    "Generation",
    "LanguageConfig",
    "MethodConfig",
    "RolloutMemory",
    "RunReport",
    "Schedule",
    "ScheduleError",
    "SiteTable",
    "TargetError",
    "TrajectoryConfig",
    "UniformConfig",
    "accelerate",
    "compare",
    "decide_together",
    "demo",
    "denoising_run",
    "discover",
    "evaluate",
    "generate",
    "inspect",
    "load_language_model",
    "method",
    "methods",
    "paused",
    "plan",
    "report",
    "restore",
    "rollout",
    "serving",
    "show",
    "stream",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        try:
            return getattr(import_module(_HOME[name]), name)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("diffcache"):
                raise
            from diffcache.schedulers.errors import from_extra

            raise ImportError(f"diffcache.{name} needs {error.name}: {from_extra('evals')}.") from error
    raise AttributeError(f"module 'diffcache' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
