"""The contract of a cache scheduler: when to compute, when to reuse."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from torch import Tensor

from diffcache.schedulers.moments import Moment
from diffcache.schedulers.steps import Decision, Step


class CacheScheduler(ABC):
    """Decides for one denoiser (and, with `per_sample`, one sample) over one run.

    The engine makes a fresh one for every run and asks it once per tick, unless a guard has decided already.
    It tells it about every tick, whoever decided.
    """

    adaptive = False
    """It has a signal to measure (once there is enough history)."""

    by_site = True
    """Its decision may depend on which site is asked about, and not only on the tick and on how old what is stored is.

    False is not inherited: a subclass may look at more.
    """

    compares: tuple[Decision, ...] = ()
    """It asks to be told, at each computed tick, how far these kinds of reuse would have been off."""

    looks_on = False
    """It wants to be told of every tick (`arrived`). Set for every subclass that overrides that."""

    keeps_tensors = False
    """It keeps tensors (`held`). Set for every subclass that overrides that."""

    def __init_subclass__(cls) -> None:
        cls.by_site = cls.__dict__.get("by_site", True)
        cls.looks_on = cls.arrived is not CacheScheduler.arrived
        cls.keeps_tensors = cls.held is not CacheScheduler.held

    def measure(self, latents: Sequence[Tensor]) -> Tensor | None:
        """The signal at this tick, fp32 of shape [streams] on the latents' device; None where there is none to read.

        Static schedulers have no signal. Nothing is read back here: the engine reads all signals of a tick at once.
        """
        return None

    @abstractmethod
    def decide(self, step: Step, signal: Sequence[float] | None) -> Decision:
        """Compute, or by what to reuse. Asked where a feature is stored; `signal` is what `measure` returned, on the host."""

    def arrived(self, latents: Sequence[Tensor]) -> None:
        """Called on every tick, after the decision, with the leading branch's latents."""

    def compared(self, past: Sequence[Moment], at: Moment, errors: Tensor) -> None:
        """Called before `computed`, of a scheduler that `compares`, where anything was stored.

        Args:
            past: the moments of the stored features that were predicted from, newest first.
            at: this tick.
            errors: of what it `compares`, in that order, as fractions of the output, fp32.
        """

    def computed(self, latents: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Called after every computed tick, with the leading branch's latents and outputs."""

    def held(self) -> Iterator[Tensor]:
        """The tensors that are alive for the scheduler's sake (they count as cache)."""
        return iter(())
