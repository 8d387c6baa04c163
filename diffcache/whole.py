"""The site that is the whole denoiser: a call is computed and stored, or predicted without calling it at all."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from diffcache.branches import Branch
from diffcache.calls import Call
from diffcache.config import CacheConfig
from diffcache.hindsight import Owed
from diffcache.lanes import joined, lane_of, outputs_of, rows_of
from diffcache.planner import Planner, Verdict
from diffcache.records import Done, RunRecord
from diffcache.schedulers.steps import MODEL, Decision, Step
from diffcache.store import Store
from diffcache.timetable import Timetable, Turn
from diffcache.watch import COMPARED, errors_of

Forward = Callable[..., Any]

WRITES_ARGUMENTS = "the denoiser writes into its arguments"
OPAQUE = "the denoiser's output is of a kind that cannot be taken apart: return tensors, tuples, dicts or a ModelOutput"


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
        step = turn.step(branch.name)
        store = branch.store(MODEL, len(self.planner.lanes))
        verdicts = self.planner.verdicts(
            step, branch, lambda lane: store.learned.latents(self._lane(call, lane))
        )
        if all(verdict.decision.computes for verdict in verdicts):
            output, obstacle = self._compute(forward, call, step, turn.timetable, branch, store)
            verdicts = [Verdict(verdict.decision, obstacle or verdict.reason) for verdict in verdicts]
        else:
            output = self._reuse(forward, call, step, turn.timetable, branch, store, verdicts)
            if self.planner.observer.shadow:
                output = self._shadow(forward, call, step, store, output)
        self.record.add(self.name, call.batch, [Done(step, verdicts)])
        return output

    def _compute(
        self, forward: Forward, call: Call, step: Step, times: Timetable, branch: Branch, store: Store
    ) -> tuple[Any, str | None]:
        """What the denoiser returns, and why it can never be reused, if so."""
        before = call.state()
        self.planner.observer.computing(self.name, step)
        output = forward(*call.args, **call.kwargs)
        layout = store.learn(call, output, residual=self.residual)
        written = call.state() != before  # a K/V cache, a list of outputs: skipping would skip the write
        if written or not layout.complete:
            branch.empty()
            return output, WRITES_ARGUMENTS if written else OPAQUE
        branch.sources, branch.changed = layout.sources(), False
        outputs, lanes = layout.split(output), len(self.planner.lanes)
        owing = any(store.owed)
        kept = [
            self._keep(
                step, times, branch, store, lane, self._lane(call, lane), outputs_of(outputs, lane, lanes)
            )
            for lane in range(lanes)
        ]
        return layout.join(joined(kept), call.tensors) if owing else output, None

    def _reuse(
        self,
        forward: Forward,
        call: Call,
        step: Step,
        times: Timetable,
        branch: Branch,
        store: Store,
        verdicts: list[Verdict],
    ) -> Any:
        """Predicts the lanes that are reused; the others are computed as one smaller batch."""
        lanes = len(verdicts)
        computing = [lane for lane, verdict in enumerate(verdicts) if verdict.decision.computes]
        computed: list[Tensor] = []
        if computing:
            args, kwargs = call.rows(rows_of(computing, lanes, call.batch))
            computed = store.learned.split(forward(*args, **kwargs))
        parts = []
        for lane, verdict in enumerate(verdicts):
            tensors = self._lane(call, lane)
            if verdict.decision.computes:
                computed_lane = outputs_of(computed, computing.index(lane), len(computing))
                outputs = self._keep(step, times, branch, store, lane, tensors, computed_lane)
            else:
                self.planner.arrived(branch, lane, store.learned.latents(tensors))
                outputs = self.planner.value(verdict, step, store, times, lane, tensors)
                self._owe(verdict, step, times, store, lane)
            parts.append(outputs)
        return store.learned.join(joined(parts), call.tensors)

    def _owe(self, verdict: Verdict, step: Step, times: Timetable, store: Store, lane: int) -> None:
        """Notes a reused tick that the next computed one is to make good."""
        in_shadow = self.planner.observer.shadow  # the run may go on with the truth
        matters = times.ratio(step.tick, step.tick) is not None
        if self.planner.looks_back and matters and not in_shadow:
            store.owed[lane].append(Owed(step.moment, self.planner.predictor.serving(verdict.decision)))

    def _shadow(self, forward: Forward, call: Call, step: Step, store: Store, predicted: Any) -> Any:
        """Computes what has been predicted, for an observer to compare, and goes on with what it says."""
        observer, layout = self.planner.observer, store.learned
        observer.computing(self.name, step)
        outputs = layout.split(forward(*call.args, **call.kwargs))
        features = layout.features(call.tensors, outputs)
        goes_on = observer.predicted(self.name, step, layout.split(predicted), outputs, features)
        observer.computed(self.name, step, features, outputs)
        return layout.join(goes_on, call.tensors)

    def _lane(self, call: Call, lane: int) -> dict[str, Tensor]:
        return lane_of(call.tensors, lane, len(self.planner.lanes), call.batch)

    def _keep(
        self,
        step: Step,
        times: Timetable,
        branch: Branch,
        store: Store,
        lane: int,
        tensors: dict[str, Tensor],
        outputs: list[Tensor],
    ) -> list[Tensor]:
        """Stores what a lane computed, and tells the planner; gives it with what makes the ticks before it good."""
        seen, evolved = store.learned.latents(tensors), store.learned.evolved(outputs)
        self.planner.arrived(branch, lane, seen)
        if branch is self.planner.leader:
            self._compare(step, times, store, lane, tensors, evolved)
        amended = store.amended(step, times, lane, tensors, outputs, self.planner.predictor.axis)
        store.push(step.tick, lane, store.learned.based(tensors, outputs))
        self.planner.observe(step, store, lane, outputs)
        self.planner.computed(branch, lane, step, seen, evolved)
        return amended

    def _compare(
        self,
        step: Step,
        times: Timetable,
        store: Store,
        lane: int,
        tensors: dict[str, Tensor],
        evolved: list[Tensor],
    ) -> None:
        """Notes how far the leading branch would have been from what has been computed, had it been reused."""
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
