"""The contract of a cache scheduler: when to compute, when to reuse."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from torch import Tensor

from diffcache.schedulers.moments import Moment
from diffcache.schedulers.steps import Decision, Step


class CacheScheduler(ABC):
    """Decides for one denoiser over one run; with `per_sample`, for one sample.

    The engine makes a new cache scheduler for each run. It asks for a decision once per tick, unless a guard has decided
    already, and reports every tick to it, whoever decided.
    """

    adaptive = False
    """Whether it needs numbers from the device before it decides (`measure`), once there is enough history."""

    by_site = True
    """Whether its decision may depend on the site. If not, it depends on the tick and the age of the stored features alone.

    False is not inherited, since a subclass may look at more.
    """

    compares: tuple[Decision, ...] = ()
    """Kinds of reuse whose error it wants to know at each computed tick (see `compared`)."""

    def expected_error(self, computed: Sequence[int]) -> float | None:
        """Of the run's result, root mean square, as a fraction of its contrast (its standard deviation); None: it expects nothing.

        Args:
            computed: the ticks at which nothing was reused, by rising number.
        """
        return None

    def remark(self, expected: float) -> str | None:
        """What the report is to say where this error is expected of the result (`expected_error`); None: nothing."""
        return None

    expects_error = False
    """It expects an error of the result (`expected_error`). Set for every subclass that overrides that."""

    looks_on = False
    """It wants to be told of every tick (`arrived`). Set for every subclass that overrides that."""

    looks_at_outputs = False
    """It wants to be told of every computed tick (`computed`). Set for every subclass that overrides that."""

    keeps_tensors = False
    """It keeps tensors (`held`). Set for every subclass that overrides that."""

    def __init_subclass__(cls) -> None:
        cls.by_site = cls.__dict__.get("by_site", True)
        cls.expects_error = cls.expected_error is not CacheScheduler.expected_error
        cls.looks_on = cls.arrived is not CacheScheduler.arrived
        cls.looks_at_outputs = cls.computed is not CacheScheduler.computed
        cls.keeps_tensors = cls.held is not CacheScheduler.held

    def measure(self, latents: Sequence[Tensor]) -> Tensor | None:
        """What is to be read from the device before this tick's decision, fp32 numbers on the latents' device: a signal, or what `compared` was given.

        None without history, and for static schedulers. This must not read the device: the engine reads all numbers of a tick at once.
        """
        return None

    @abstractmethod
    def decide(self, step: Step, signal: Sequence[float] | None) -> Decision:
        """Whether to compute, or how to reuse. Called where a feature is stored.

        Args:
            step: the call to decide.
            signal: what `measure` returned, read to the host.
        """

    def arrived(self, latents: Sequence[Tensor]) -> None:
        """Called at every tick, after the decision, with the latents of the leading branch."""

    def compared(self, past: Sequence[Moment], at: Moment, squares: Tensor) -> None:
        """Called before `computed` if the scheduler `compares` anything and a feature was stored.

        Args:
            past: when the stored features were computed, newest first.
            at: this tick.
            squares: of what was computed, and of the error of each kind of reuse in `compares`, in the mean over elements; and the
                variance of each sample that the denoiser was given, in the mean over them; fp32 [1 + kinds + 1]. The others are means over streams.
        """

    def computed(self, latents: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Called at every computed tick, after `arrived`, with the latents and outputs of the leading branch."""

    def verifies(self, step: Step) -> bool:
        """Whether at this reused tick the last site inside the denoiser is also computed, for `accepts`. Asked after `decide`."""
        return False

    def accepts(self, step: Step, guess: Sequence[Tensor], truth: Sequence[Tensor]) -> bool:
        """Whether a verified tick stays reused. If not, all of it is computed instead, in every guidance pass.

        Args:
            step: of the tick.
            guess: the last site's outputs as predicted, one tensor for each stream.
            truth: as computed from the predictions of the sites before it.
        """
        return True

    def held(self) -> Iterator[Tensor]:
        """The tensors that the scheduler keeps; they count as cache."""
        return iter(())
