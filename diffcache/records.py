"""What the engine writes down of a run while it goes on."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from torch import Tensor


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One denoiser call.

    Attributes:
        tick, branch, site: where it stands.
        computed: share of its samples that were computed: 0 or 1, or between with `per_sample`.
        reason: why a guard, not the method, made it compute; None otherwise.
        weight: its cost when computed, in samples times parameters.
    """

    tick: int
    branch: str
    site: str
    computed: float
    reason: str | None
    weight: float


@dataclass(slots=True)
class RunRecord:
    """One denoising loop.

    Attributes:
        num_ticks: its expected length; None where nothing said so.
        sigmas: the noise level of each tick, where known.
        observed: the end of a tick has been seen.
        calls: every denoiser call in order.
        cache_bytes: most bytes that were held at once.
        parameters: number of parameters of each site.
    """

    num_ticks: int | None = None
    sigmas: list[float] | None = None
    observed: bool = False
    calls: list[CallRecord] = field(default_factory=list)
    cache_bytes: int = 0
    parameters: dict[str, int] = field(default_factory=dict)

    def add(self, tick: int, branch: str, site: str, computed: float, reason: str | None, batch: int) -> None:
        weight = float(batch * max(self.parameters.get(site, 1), 1))
        self.calls.append(CallRecord(tick, branch, site, computed, reason, weight))

    def amend(self, reason: str) -> None:
        """Gives the newest call a reason that was found only while it was computed."""
        self.calls[-1] = replace(self.calls[-1], reason=reason)

    def hold(self, tensors: Iterable[Tensor]) -> None:
        """Notes how much is held now."""
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
        self.cache_bytes = max(self.cache_bytes, sum(storages.values()))
