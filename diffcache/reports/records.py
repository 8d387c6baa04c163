"""What the engine writes down of a run while it goes on."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from diffcache.schedulers.schedule import Model
from diffcache.schedulers.steps import Decision, Step, Verdict

MIXED = "+"


@dataclass(slots=True)
class CallRecord:
    """One call of a denoiser, or of a place inside it.

    Attributes:
        tick, branch, site: where it stands: the denoiser's name, followed by a place's inside it.
        computed: share of its samples that were computed: 0 or 1, or between with `per_sample`.
        mark: "#" computed, "-" predicted, "/" by a straight line, "=" held, "+" not all samples alike.
        reason: why a guard, not the method, made it compute; None otherwise.
        weight: its cost when computed, in samples times parameters.
        cached: it can be reused. False for what lies beside the places of a denoiser that is cached inside.
    """

    tick: int
    branch: str
    site: str
    computed: float
    mark: str
    reason: str | None
    weight: float
    cached: bool = True


class Done(NamedTuple):
    """What was done at a site in one call of its denoiser.

    Attributes:
        verdicts: one for each lane.
        share: the site's part of the denoiser's work.
        cached: it can be reused.
    """

    step: Step
    verdicts: Sequence[Verdict]
    share: float = 1.0
    cached: bool = True


@dataclass(slots=True)
class RunRecord:
    """One denoising loop.

    Attributes:
        num_ticks: its expected length; None where nothing said so.
        sigmas: the noise level of each tick, where known.
        observed: the end of a tick has been seen.
        cache_bytes: most bytes that were held at once.
        host_bytes: likewise, of what lay in host memory instead.
        held: bytes that were held last, and in host memory, by denoiser.
        parameters: number of parameters of each denoiser.
        models: what each denoiser is.
        quantization: what the weights of each denoiser that is quantised are stored in.
        noise_scheduler: class name; None in a hand-written loop.
        predictor: description of the method's.
        notes: what was done to keep to a bound.
        errors: at a computed tick, the last computed tick before it, and by mark the errors of reusing it so instead, as
            fractions of the output; of the leading branch, where the whole denoiser is cached.
    """

    num_ticks: int | None = None
    sigmas: list[float] | None = None
    observed: bool = False
    cache_bytes: int = 0
    host_bytes: int = 0
    held: dict[str, tuple[int, int]] = field(default_factory=dict)
    parameters: dict[str, int] = field(default_factory=dict)
    models: dict[str, Model] = field(default_factory=dict)
    quantization: dict[str, str] = field(default_factory=dict)
    noise_scheduler: str | None = None
    predictor: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    errors: list[tuple[int, int, dict[str, float]]] = field(default_factory=list)
    _noted: list[tuple[str, int, int, Sequence[Done]]] = field(default_factory=list, init=False, repr=False)
    _made: tuple[int, list[CallRecord]] = field(
        default_factory=lambda: (0, []), init=False, repr=False, compare=False
    )

    def add(self, denoiser: str, batch: int, done: Sequence[Done]) -> None:
        """Notes what was done in one call of a denoiser."""
        self._noted.append((denoiser, batch, max(self.parameters.get(denoiser, 1), 1), done))

    @property
    def calls(self) -> list[CallRecord]:
        """Every denoiser call in order, and those of its places; made when they are asked for, not while the run goes on."""
        noted = list(self._noted)
        if self._made[0] != len(noted):
            made = [
                _record(name, batch, parameters, done)
                for name, batch, parameters, sites in noted
                for done in sites
            ]
            self._made = len(noted), made
        return self._made[1]

    def hold(self, denoiser: str, tensors: Iterable[Tensor], stored: int, *, on_host: bool) -> None:
        """Notes how much is held for a denoiser now: so many bytes `stored`, in host memory or not, and other tensors."""
        others = bytes_of(tensors)
        self.held[denoiser] = (others, stored) if on_host else (others + stored, 0)
        on_device, in_host_memory = map(sum, zip(*self.held.values(), strict=True))
        self.cache_bytes = max(self.cache_bytes, on_device)
        self.host_bytes = max(self.host_bytes, in_host_memory)


def _record(denoiser: str, batch: int, parameters: int, done: Done) -> CallRecord:
    step, verdicts, share, cached = done
    decisions = [verdict.decision for verdict in verdicts]
    computed = decisions.count(Decision.COMPUTE) / len(decisions)
    mark = decisions[0].value if decisions.count(decisions[0]) == len(decisions) else MIXED
    reason = next((verdict.reason for verdict in verdicts if verdict.reason), None)
    site = step.full_name(denoiser)
    weight = share * batch * parameters
    return CallRecord(step.tick, step.branch, site, computed, mark, reason, weight, cached)


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of the memory behind tensors; memory that several share is counted once."""
    sizes = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        sizes[storage._cdata] = storage.nbytes()
    return sum(sizes.values())
