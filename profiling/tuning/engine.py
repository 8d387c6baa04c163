"""An engine proposes methods for a share of the compute; `tune` renders them, and takes the best."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, ClassVar, TypeVar

from diffcache.config import CacheConfig
from diffcache.profiling.recording.calling import Call
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.schedule import Schedule
from diffcache.schedulers.steps import MODEL

INNER_SITE = "sub-layer"
"""What engines that cannot cache the whole denoiser cache where nothing else is asked for: each attention and feed-forward."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What an engine works on.

    Attributes:
        pipe: a plain pipeline.
        calls: to fit on, all with the same number of steps.
        ticks: length of their runs.
        sites: what is cached, as `UniformConfig.site`; None: what suits the engine.
        folder: for the checkpoints of engines that have their own; None: a temporary one.
        seed: of all random numbers.
    """

    pipe: Any
    calls: list[Call]
    ticks: int
    folder: Path | None = None
    sites: str | None = None
    seed: int = 0

    def checkpoints(self, name: str) -> Path:
        """The folder of an engine's checkpoints."""
        return (self.folder or Path(mkdtemp(prefix="diffcache-"))) / name


class TuningEngine(ABC):
    """Proposes methods.

    Attributes:
        fitted: calls that it fits on, at most.
        whole, inner: whether it can work on the whole denoiser, and whether on sites inside it.
        adaptive: its methods decide in the run, so they are saved as configs and not as schedules.
        confirms: a later proposal replaces an earlier one only if it is better on more samples than chance explains.
        proposals: how many it proposes for a share, at most.
    """

    fitted: ClassVar[int] = 4
    whole: ClassVar[bool] = True
    inner: ClassVar[bool] = False
    adaptive: ClassVar[bool] = False
    confirms: ClassVar[bool] = False
    proposals: ClassVar[int] = 1

    def __init__(self, task: Task) -> None:
        self.task = task
        sites = task.sites or (MODEL if self.whole else INNER_SITE)
        if sites == MODEL and not self.whole:
            raise ConfigError(
                f"{self.name()} works inside the denoiser: pass sites='sub-layer', or leave it out."
            )
        if sites != MODEL and not self.inner:
            raise ConfigError(f"{self.name()} chooses its sites itself: leave sites= out.")
        self.sites = sites

    @classmethod
    def name(cls) -> str:
        """As users call it."""
        return next(name for name, kind in ENGINES.items() if kind is cls)

    @abstractmethod
    def propose(self, compute: float) -> Iterator[CacheConfig]:
        """Methods that compute at most a share of the full run's work, the safest first.

        Raises:
            TooLittle: it cannot compute so little.
        """

    def corrected(self, schedule: Schedule) -> Schedule | None:
        """A proposal with a correction that is fitted to its own runs, to be tried; None where the engine has none."""
        return None

    @abstractmethod
    def fit_renders(self) -> int:
        """About how many renders it takes to propose for the first share, beside those that judge the proposals."""


ENGINES: dict[str, type[TuningEngine]] = {}
"""By name."""

E = TypeVar("E", bound=type[TuningEngine])


def engine(name: str) -> Callable[[E], E]:
    """Registers an engine."""

    def registered(kind: E) -> E:
        ENGINES[name] = kind
        return kind

    return registered
