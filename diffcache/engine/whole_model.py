"""The site that is the whole denoiser: a call is computed and stored, or predicted without calling it at all."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from diffcache.config import CacheConfig
from diffcache.engine.branches import Branch
from diffcache.engine.decider import Planner, Verdict
from diffcache.engine.watch import COMPARED, errors_of
from diffcache.host.call import Call
from diffcache.host.rows import joined, lane_of, outputs_of, rows_of
from diffcache.noise_schedulers.timetable import Timetable, Turn
from diffcache.prediction.hindsight import Owed
from diffcache.reports.records import Done, RunRecord
from diffcache.schedulers.steps import MODEL, Decision, Step
from diffcache.store.rings import Store, Tensors

Forward = Callable[..., Any]

WRITES_ARGUMENTS = "the denoiser writes into its arguments"
OPAQUE = "the denoiser's output is of a kind that cannot be taken apart: return tensors, tuples, dicts or a ModelOutput"


@dataclass(slots=True)
class Here:
    """One call of the denoiser, where it stands, and where its branch keeps what it computed."""

    call: Call
    step: Step
    times: Timetable
    branch: Branch
    store: Store
    lanes: int

    def tensors(self, lane: int) -> Tensors:
        """The arguments that belong to a lane."""
        return lane_of(self.call.tensors, lane, self.lanes, self.call.batch)


class Whole:
    """Executes the planner's verdicts on whole calls of one denoiser.

    Args:
        name: the denoiser's, in the report.
        config: the method.
        planner: decides.
        record: where every call is written down.
    """

    def __init__(self, name: str, config: CacheConfig, planner: Planner, record: RunRecord) -> None:
        self.name = name
        self.residual = config.residual
        self.planner = planner
        self.record = record
        self.errors: list[tuple[int, int, tuple[Decision, ...], Tensor]] = []

    def close(self) -> None:
        """Reads what was measured back from the device, once, when the run is over."""
        if self.errors:
            values = torch.stack(list(self.tensors())).tolist()
            self.record.errors += [
                (tick, last, {kind.value: error for kind, error in zip(kinds, row, strict=True)})
                for (tick, last, kinds, _), row in zip(self.errors, values, strict=True)
            ]
        self.errors = []

    def tensors(self) -> Iterator[Tensor]:
        """What was measured and has not been read yet."""
        return (errors for *_, errors in self.errors)

    def run(self, forward: Forward, call: Call, turn: Turn, branch: Branch) -> Any:
        """One denoiser call."""
        lanes = len(self.planner.lanes)
        here = Here(call, turn.step(branch.name), turn.timetable, branch, branch.store(MODEL, lanes), lanes)
        verdicts = self.planner.verdicts(
            here.step, branch, lambda lane: here.store.learned.latents(here.tensors(lane))
        )
        if all(verdict.decision.computes for verdict in verdicts):
            output, obstacle = self._compute(forward, here)
            verdicts = [Verdict(verdict.decision, obstacle or verdict.reason) for verdict in verdicts]
        else:
            output = self._reuse(forward, here, verdicts)
            if self.planner.observer.shadow:
                output = self._shadow(forward, here, output)
        self.record.add(self.name, call.batch, [Done(here.step, verdicts)])
        return output

    def _compute(self, forward: Forward, here: Here) -> tuple[Any, str | None]:
        """What the denoiser returns, and why it can never be reused, if so."""
        call, branch, store = here.call, here.branch, here.store
        before = call.state()
        self.planner.observer.computing(self.name, here.step)
        output = forward(*call.args, **call.kwargs)
        layout = store.learn(call, output, residual=self.residual)
        written = call.state() != before  # a K/V cache, a list of outputs: skipping would skip the write
        if written or not layout.complete:
            branch.empty()
            return output, WRITES_ARGUMENTS if written else OPAQUE
        branch.sources, branch.changed = layout.sources(), False
        outputs, owing = layout.split(output), any(store.owed)
        kept = [self._keep(here, lane, outputs_of(outputs, lane, here.lanes)) for lane in range(here.lanes)]
        return layout.join(joined(kept), call.tensors) if owing else output, None

    def _reuse(self, forward: Forward, here: Here, verdicts: list[Verdict]) -> Any:
        """Predicts the lanes that are reused; the others are computed as one smaller batch."""
        call, layout = here.call, here.store.learned
        computing = [lane for lane, verdict in enumerate(verdicts) if verdict.decision.computes]
        computed: list[Tensor] = []
        if computing:
            args, kwargs = call.rows(rows_of(computing, here.lanes, call.batch))
            computed = layout.split(forward(*args, **kwargs))
        parts = []
        for lane, verdict in enumerate(verdicts):
            if verdict.decision.computes:
                own = outputs_of(computed, computing.index(lane), len(computing))
                parts.append(self._keep(here, lane, own))
            else:
                parts.append(self._predict(here, lane, verdict))
        return layout.join(joined(parts), call.tensors)

    def _predict(self, here: Here, lane: int, verdict: Verdict) -> list[Tensor]:
        """The outputs of a reused lane; notes what the next computed tick is to make good."""
        planner, tensors, tick = self.planner, here.tensors(lane), here.step.tick
        planner.arrived(here.branch, lane, here.store.learned.latents(tensors))
        outputs = planner.value(verdict, here.step, here.store, here.times, lane, tensors)
        matters = here.times.ratio(tick, tick) is not None
        in_shadow = planner.observer.shadow  # the run may go on with the truth
        if planner.looks_back and matters and not in_shadow:
            here.store.owed[lane].append(Owed(here.step.moment, planner.predictor.serving(verdict.decision)))
        return outputs

    def _shadow(self, forward: Forward, here: Here, predicted: Any) -> Any:
        """Computes what has been predicted, for an observer to compare, and goes on with what it says."""
        observer, layout, call = self.planner.observer, here.store.learned, here.call
        observer.computing(self.name, here.step)
        outputs = layout.split(forward(*call.args, **call.kwargs))
        features = layout.features(call.tensors, outputs)
        goes_on = observer.predicted(self.name, here.step, layout.split(predicted), outputs, features)
        observer.computed(self.name, here.step, features, outputs)
        return layout.join(goes_on, call.tensors)

    def _keep(self, here: Here, lane: int, outputs: list[Tensor]) -> list[Tensor]:
        """Stores what a lane computed, and tells the planner; gives it with what makes the ticks before it good."""
        planner, step, store = self.planner, here.step, here.store
        tensors = here.tensors(lane)
        seen, evolved = store.learned.latents(tensors), store.learned.evolved(outputs)
        planner.arrived(here.branch, lane, seen)
        if here.branch is planner.leader:
            self._compare(here, lane, tensors, evolved)
        amended = store.amended(step, here.times, lane, tensors, outputs, planner.predictor.axis)
        store.push(step.tick, lane, store.learned.based(tensors, outputs))
        planner.observe(step, store, lane, outputs)
        planner.computed(here.branch, lane, step, seen, evolved)
        return amended

    def _compare(self, here: Here, lane: int, tensors: Tensors, evolved: list[Tensor]) -> None:
        """Notes how far the leading branch would have been from what has been computed, had it been reused."""
        step, times, store = here.step, here.times, here.store
        decides, last = self.planner.lanes[lane], store.last_computed(lane)
        longer = last is not None and step.tick - last > 1  # a step of one tick says little about longer ones
        asked = decides.scheduler.compares
        if last is None or not (longer or asked):
            return
        kinds = asked or COMPARED
        predictors = [self.planner.predictor.serving(kind) for kind in kinds]
        guesses = [store.value(predictor, step, times, lane, tensors) for predictor in predictors]
        errors = errors_of(map(store.learned.evolved, guesses), evolved)
        if asked:
            decides.scheduler.compared(store.moments(lane, times), step.moment, errors)
        if longer:
            self.errors.append((step.tick, last, kinds, errors))
            if decides.watch is not None and len(store.rings[lane]) > 1:
                decides.watch.note(errors)
