"""What the engine records of a run while the run goes on."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import takewhile
from typing import Any, NamedTuple

from torch import Tensor

from diffcache.reports.fresh_noise import FreshNoise
from diffcache.schedulers.schedule import NOT_CALLED, Model
from diffcache.schedulers.steps import Decision, Step, Verdict

MIXED = "+"
"""The mark of a call whose samples were not all treated alike."""


@dataclass(slots=True)
class CallRecord:
    """One call of a denoiser, or of a site inside it.

    Attributes:
        tick, branch: when it was called.
        site: the denoiser's name ("transformer"), followed by the site's inside it ("transformer.blocks.3").
        computed: the share of its samples that were computed: 0 or 1, with `per_sample` anything between; where some tokens
            were computed, their share of the work.
        mark: "#" computed, "%" some tokens computed, "-" predicted, "/" predicted by a straight line, "=" held, "+" not all samples alike.
        reason: why it was computed, where that was not the method's own decision; else None.
        weight: its cost when computed: samples times parameters.
        cached: it can be reused. False for the part of a denoiser that lies outside its cached sites.
        extra: what was computed besides, to verify predictions, in the unit of `weight`; the full run has none of it.
    """

    tick: int
    branch: str
    site: str
    computed: float
    mark: str
    reason: str | None
    weight: float
    cached: bool = True
    extra: float = 0.0

    @property
    def cost(self) -> float:
        """What it cost, in the unit of `weight`."""
        return self.weight * self.computed + self.extra


class Done(NamedTuple):
    """What was done at a site in one call of its denoiser.

    Attributes:
        step: tick, branch and site.
        verdicts: one for each lane.
        share: the site's share of the denoiser's work.
        cached: the site can be reused.
        work: the share of the site's work that a computed call of some tokens took.
        extra: share of the denoiser's work that was computed besides, to verify predictions.
    """

    step: Step
    verdicts: Sequence[Verdict]
    share: float = 1.0
    cached: bool = True
    work: float = 1.0
    extra: float = 0.0


class Noted(NamedTuple):
    """One call of a denoiser, as it is noted while the run goes on.

    Attributes:
        denoiser: its name.
        batch: number of samples.
        parameters: of the denoiser, at least 1.
        sites: what was done at each.
    """

    denoiser: str
    batch: int
    parameters: int
    sites: Sequence[Done]

    @property
    def tick(self) -> int:
        """When it was called."""
        return self.sites[0].step.tick

    def records(self) -> Iterator[CallRecord]:
        """A record for each site."""
        for done in self.sites:
            yield _record(self.denoiser, self.batch, self.parameters, done)


class TickCalls(NamedTuple):
    """The calls at one tick.

    Attributes:
        calls: of each the denoiser, the guidance pass and the number of rows.
        decisions: of all of them.
    """

    calls: tuple[tuple[str, str, int], ...]
    decisions: frozenset[Decision]

    @property
    def are_computed(self) -> bool:
        """Whether everything was computed."""
        return bool(self.decisions) and all(decision.computes for decision in self.decisions)

    @property
    def are_reused(self) -> bool:
        """Whether no call was computed as a whole; of some, some tokens may have been."""
        return bool(self.decisions) and not any(decision.computes for decision in self.decisions)


@dataclass(slots=True)
class RunRecord:
    """One denoising loop.

    Attributes:
        num_ticks: its expected number of ticks; None where nothing told.
        sigmas: the noise level of each tick; None where unknown.
        nominal_sigmas: those that the noise scheduler had before the method gave it others; None where it gave it none.
        observed: the loop has told when ticks end or begin: its noise scheduler has stepped, or `begin_step` was called.
        cache_bytes: the most bytes that were held at once on the device that computes.
        host_bytes: the most bytes that were held at once in host memory.
        held: for each denoiser the bytes held now, on the device and in host memory.
        parameters: number of parameters of each denoiser.
        models: class and configuration hash of each denoiser.
        quantization: the weight formats of each quantised denoiser.
        noise_scheduler: its class name; None in a hand-written loop that does not name it.
        fresh_noise: the noise scheduler added noise at its steps; None where it did not.
        amplification: by guidance, as the first tick has shown it (see `Guidance`); None: it has shown none, or nobody asked.
        guidance_changed: the scale of guidance changed during the run: the report gives no expected error.
        is_uncorrected: the result was to be corrected, and is not: the report gives no expected error.
        predictor: description of the predictor.
        corrections: of the schedule that the run followed, as far as they were applied (see `Schedule.corrections`).
        notes: what the user should know: what was done to keep to `max_cache_bytes`, why there is no hindsight.
        remarks: for each denoiser what the method says of its reuse, if anything; it holds only where something was reused.
        expected_error: of the result, root mean square, as a fraction of its contrast; None where nothing is expected.
        errors: (tick, last computed tick before it, errors) for computed ticks of the leading branch, where the whole
            denoiser is cached. The errors are those of reusing the tick instead, by mark, as fractions of the output.
    """

    num_ticks: int | None = None
    sigmas: list[float] | None = None
    nominal_sigmas: list[float] | None = None
    observed: bool = False
    cache_bytes: int = 0
    host_bytes: int = 0
    held: dict[str, tuple[int, int]] = field(default_factory=dict)
    parameters: dict[str, int] = field(default_factory=dict)
    models: dict[str, Model] = field(default_factory=dict)
    quantization: dict[str, str] = field(default_factory=dict)
    noise_scheduler: str | None = None
    fresh_noise: FreshNoise | None = None
    amplification: float | None = None
    guidance_changed: bool = False
    is_uncorrected: bool = False
    predictor: dict[str, Any] = field(default_factory=dict)
    corrections: dict[str, Tensor] = field(default_factory=dict, compare=False)
    notes: list[str] = field(default_factory=list)
    remarks: dict[str, str] = field(default_factory=dict)
    expected_error: float | None = None
    errors: list[tuple[int, int, dict[str, float]]] = field(default_factory=list)
    _noted: list[Noted] = field(default_factory=list, init=False, repr=False)
    _made: tuple[int, list[CallRecord]] = field(
        default_factory=lambda: (0, []), init=False, repr=False, compare=False
    )

    def add(self, denoiser: str, batch: int, done: Sequence[Done]) -> None:
        """Records what was done in one call of a denoiser.

        Args:
            denoiser: its name.
            batch: number of samples.
            done: for each site.
        """
        self._noted.append(Noted(denoiser, batch, max(self.parameters.get(denoiser, 1), 1), done))

    @property
    def calls(self) -> list[CallRecord]:
        """Every call of a denoiser and of its sites, in order. Made when it is read, to cost the run no time."""
        noted = list(self._noted)
        if self._made[0] != len(noted):
            self._made = len(noted), [call for one in noted for call in one.records()]
        return self._made[1]

    def calls_at(self, tick: int) -> TickCalls:
        """What was called at a tick, if it is the newest."""
        newest = [*takewhile(lambda noted: noted.tick == tick, reversed(self._noted))]
        verdicts = (verdict for noted in newest for done in noted.sites for verdict in done.verdicts)
        calls = tuple((noted.denoiser, noted.sites[0].step.branch, noted.batch) for noted in newest)
        return TickCalls(calls, frozenset(verdict.decision for verdict in verdicts))

    def reused_ticks(self) -> set[int]:
        """Ticks at which something was reused."""
        return {
            done.step.tick
            for noted in self._noted
            for done in noted.sites
            if not all(verdict.decision.computes for verdict in done.verdicts)
        }

    def marks(self) -> dict[str, dict[str, str]]:
        """The marks as a schedule's table: one character for each tick, by site and branch."""
        ticks = self.num_ticks or 1 + max(call.tick for call in self.calls)
        marks: dict[str, dict[str, list[str]]] = {}
        for call in (call for call in self.calls if call.cached):
            row = marks.setdefault(call.site, {}).setdefault(call.branch, [NOT_CALLED] * ticks)
            row[call.tick] = Decision.COMPUTE.value if call.mark == Decision.ROWS.value else call.mark
        return {site: {branch: "".join(row) for branch, row in rows.items()} for site, rows in marks.items()}

    @property
    def reuse_error(self) -> float:
        """The sum of the estimated errors of reused ticks; a tick whose samples differ counts as predicted."""
        marks = {call.tick: call.mark for call in self.calls if call.cached and not call.computed}
        predicted = Decision.PREDICT.value
        return sum(
            errors.get(marks.get(tick, predicted), errors[predicted]) / 2
            for end, last, errors in self.errors
            for tick in range(last + 1, end)
        )

    def __len__(self) -> int:
        """How many calls of denoisers have been recorded."""
        return len(self._noted)

    def share_since(self, first: int) -> float:
        """The share of the work that was computed in the calls from `first` on: 0 where all was reused, 1 without a call."""
        return share_of([call for noted in self._noted[first:] for call in noted.records()])

    def as_dict(self) -> dict[str, Any]:
        """The public attributes and the calls, as JSON can hold them; of corrections the shapes."""
        public = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        models = {name: asdict(model) for name, model in self.models.items()}
        noise = None if self.fresh_noise is None else asdict(self.fresh_noise)
        return {
            **public,
            "models": models,
            "fresh_noise": noise,
            "corrections": {name: list(tensor.shape) for name, tensor in self.corrections.items()},
            "calls": [asdict(call) for call in self.calls],
        }

    def hold(self, denoiser: str, tensors: Iterable[Tensor], stored: int, *, on_host: bool) -> None:
        """Records how many bytes are held for a denoiser now.

        Args:
            denoiser: its name.
            tensors: what is held outside stores; always on the device.
            stored: bytes in stores.
            on_host: the stores are in host memory.
        """
        others = bytes_of(tensors)
        self.held[denoiser] = (others, stored) if on_host else (others + stored, 0)
        on_device, in_host_memory = map(sum, zip(*self.held.values(), strict=True))
        self.cache_bytes = max(self.cache_bytes, on_device)
        self.host_bytes = max(self.host_bytes, in_host_memory)


def share_of(calls: Sequence[CallRecord]) -> float:
    """The share of the calls' work that was computed; 1 without a call."""
    total = sum(call.weight for call in calls)
    return sum(call.cost for call in calls) / total if total else 1.0


def _record(denoiser: str, batch: int, parameters: int, done: Done) -> CallRecord:
    step, verdicts, share, cached, work, extra = done
    decisions = [verdict.decision for verdict in verdicts]
    computed = (decisions.count(Decision.COMPUTE) + work * decisions.count(Decision.ROWS)) / len(decisions)
    mark = decisions[0].value if decisions.count(decisions[0]) == len(decisions) else MIXED
    reason = next((verdict.reason for verdict in verdicts if verdict.reason), None)
    site = step.full_name(denoiser)
    whole = batch * parameters
    return CallRecord(
        step.tick, step.branch, site, computed, mark, reason, share * whole, cached, extra * whole
    )


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of the tensors' memory; memory that several share counts once."""
    sizes = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        sizes[storage._cdata] = storage.nbytes()
    return sum(sizes.values())
