"""What the engine writes down of a run while it goes on."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from diffcache.schedulers.schedule import Model

if TYPE_CHECKING:
    from diffcache.planner import Verdict

MIXED = "+"
COMPUTED = "#"


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One denoiser call.

    Attributes:
        tick, branch, site: where it stands.
        computed: share of its samples that were computed: 0 or 1, or between with `per_sample`.
        mark: "#" computed, "-" predicted, "=" held, "+" not all samples alike.
        reason: why a guard, not the method, made it compute; None otherwise.
        weight: its cost when computed, in samples times parameters.
    """

    tick: int
    branch: str
    site: str
    computed: float
    mark: str
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
        held: bytes that were held last, by denoiser.
        parameters: number of parameters of each site.
        models: what each site is.
        noise_scheduler: class name; None in a hand-written loop.
        predictor: description of the method's.
    """

    num_ticks: int | None = None
    sigmas: list[float] | None = None
    observed: bool = False
    calls: list[CallRecord] = field(default_factory=list)
    cache_bytes: int = 0
    held: dict[str, int] = field(default_factory=dict)
    parameters: dict[str, int] = field(default_factory=dict)
    models: dict[str, Model] = field(default_factory=dict)
    noise_scheduler: str | None = None
    predictor: dict[str, Any] = field(default_factory=dict)

    def add(self, tick: int, branch: str, site: str, verdicts: Sequence["Verdict"], batch: int) -> None:
        """Notes a call with one verdict for each lane."""
        decisions = [verdict.decision for verdict in verdicts]
        computed = sum(decision.computes for decision in decisions) / len(decisions)
        mark = decisions[0].value if len(set(decisions)) == 1 else MIXED
        reason = next((verdict.reason for verdict in verdicts if verdict.reason), None)
        weight = float(batch * max(self.parameters.get(site, 1), 1))
        self.calls.append(CallRecord(tick, branch, site, computed, mark, reason, weight))

    def split(self, sites: Sequence[str], share: float) -> None:
        """The newest call is that of a denoiser whose `sites` span so large a `share` of its operations."""
        call = self.calls.pop()
        rest = replace(call, computed=1 - share * (1 - call.computed), mark=COMPUTED)
        self.calls += [rest, *(replace(call, site=site, weight=0.0) for site in sites)]

    def amend(self, reason: str) -> None:
        """Gives the newest call a reason that was found only while it was computed."""
        self.calls[-1] = replace(self.calls[-1], reason=reason)

    def hold(self, site: str, tensors: Iterable[Tensor]) -> None:
        """Notes how much is held for a denoiser now."""
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
        self.held[site] = sum(storages.values())
        self.cache_bytes = max(self.cache_bytes, sum(self.held.values()))
