"""The site that is the whole denoiser: a call is computed and stored, or predicted without calling it at all."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from diffcache.engine.branch import Branch
from diffcache.engine.comparison import Comparison, squares_of
from diffcache.engine.execution import Carried, Computation, Invocation, Need, Parts
from diffcache.engine.guided_values import GuidedValues
from diffcache.engine.observers import NOBODY
from diffcache.host.call import Call
from diffcache.host.rows import joined, lane_of, outputs_of, rows_of
from diffcache.reports.records import Done
from diffcache.schedulers.steps import MODEL, Decision, Step, Verdict
from diffcache.store.rings import Store, Tensors

WRITES_ARGUMENTS = "the denoiser writes into its arguments"
NO_ROWS = "per_sample: the denoiser returns a tensor that has no row for each sample: leave per_sample off"
OPAQUE = "the denoiser's output is of a kind that cannot be taken apart: return tensors, tuples, dicts or a ModelOutput"


@dataclass(slots=True)
class Here:
    """One call of the denoiser, where it stands, and where its branch keeps what it computed.

    `verdict` and `work` are set where a computed call computes some tokens, or why it could not.
    """

    asked: Invocation
    step: Step
    branch: Branch
    store: Store
    lanes: int
    verdict: Verdict | None = None
    work: float = 1.0

    @property
    def call(self) -> Call:
        """What was asked for."""
        return self.asked.call

    def tensors(self, lane: int) -> Tensors:
        """The arguments that belong to a lane."""
        return lane_of(self.call.tensors, lane, self.lanes, self.call.batch)


class WholeModel:
    """Executes verdicts on whole calls of one denoiser.

    Args:
        parts: what it works with.
        comparison: of what would have been reused with what was computed.
    """

    def __init__(self, parts: Parts, comparison: Comparison | None = None) -> None:
        self.name = parts.choices.facts.denoiser
        self.basis = parts.choices.basis
        self.decider = parts.decider
        self.record = parts.record
        self.comparison = comparison or Comparison()
        self.guided_values = GuidedValues(lambda: parts.choices.facts.guidance)

    def close(self) -> None:
        """Reads what was measured from the device, once, when the run is over."""
        self.comparison.close(self.record)
        self.guided_values.clear()

    def tensors(self) -> Iterator[Tensor]:
        """What was measured and has not been read yet."""
        yield from (errors for *_, errors in self.comparison.errors)
        yield from self.guided_values.tensors()

    def run(self, asked: Invocation, step: Step, branch: Branch, lanes: int) -> Carried:
        """One denoiser call."""
        store = branch.store(MODEL, lanes)
        here = Here(asked, step, branch, store, lanes)
        self.guided_values.called(step.tick, asked.call.batch)
        if self.decider.observer is not NOBODY and store.layout is not None:
            self.decider.observer.called(self.name, step, store.learned.latents(asked.call.tensors))
        verdicts = yield from self.decider.deciding(
            step, branch, lambda lane: store.learned.latents(here.tensors(lane)), lanes
        )
        if all(verdict.decision is Decision.COMPUTE for verdict in verdicts):
            output, obstacle = yield from self._compute(here)
            if obstacle is not None:
                verdicts = [Verdict(verdict.decision, obstacle) for verdict in verdicts]
            elif here.verdict is not None:
                verdicts = [here.verdict]
        else:
            output = yield from self._reuse(here, verdicts)
            if self.decider.observer.shadow:
                output = yield from self._shadow(here, output)
        self.record.add(self.name, asked.call.batch, [Done(step, verdicts, work=here.work)])
        return output

    def forwarded(self, here: Here) -> Carried:
        """What the denoiser returns where it is called."""
        return (yield Computation(here.call.args, here.call.kwargs))

    def reused_outputs(self, here: Here, lane: int, decision: Decision) -> list[Tensor]:
        """The outputs of a reused lane."""
        return here.store.value(decision, here.step, lane, here.tensors(lane))

    def _compute(self, here: Here) -> Generator[Need, Any, tuple[Any, str | None]]:
        """What the denoiser returns, and why it can never be reused, if so."""
        call, branch, store = here.call, here.branch, here.store
        before = call.state()
        self.decider.observer.computing(self.name, here.step)
        output = yield from self.forwarded(here)
        layout = store.learn(call, output, basis=self.basis)
        store.setup.streams = len(layout.streams)
        written = call.is_written(before)  # a K/V cache, a list of outputs: skipping would skip the write
        if written or not layout.complete:
            branch.empty()
            return output, WRITES_ARGUMENTS if written else OPAQUE
        branch.sources, branch.changed = layout.sources(), False
        outputs, corrects = layout.split(output), any(store.reused)
        if here.lanes > 1 and not all(x.ndim and x.shape[0] == call.batch for x in outputs):
            branch.empty()
            return output, NO_ROWS
        kept = [self._keep(here, lane, outputs_of(outputs, lane, here.lanes)) for lane in range(here.lanes)]
        return layout.join(joined(kept), call.tensors) if corrects else output, None

    def _reuse(self, here: Here, verdicts: list[Verdict]) -> Carried:
        """Predicts the lanes that are reused; the others are computed as one smaller batch."""
        call, layout = here.call, here.store.learned
        if here.lanes == 1:
            return layout.join(self._reuse_lane(here, 0, verdicts[0].decision), call.tensors)
        computing = [lane for lane, verdict in enumerate(verdicts) if verdict.decision.computes]
        computed: list[Tensor] = []
        if computing:
            args, kwargs = call.rows(rows_of(computing, here.lanes, call.batch))
            computed = layout.split((yield Computation(args, kwargs)))
        parts = []
        for lane, verdict in enumerate(verdicts):
            if verdict.decision.computes:
                own = outputs_of(computed, computing.index(lane), len(computing))
                parts.append(self._keep(here, lane, own))
            else:
                parts.append(self._reuse_lane(here, lane, verdict.decision))
        return layout.join(joined(parts), call.tensors)

    def _reuse_lane(self, here: Here, lane: int, decision: Decision) -> list[Tensor]:
        """The outputs of a reused lane; notes what the next computed tick is to correct."""
        store, step = here.store, here.step
        if self.decider.lanes[lane].scheduler.looks_on:
            self.decider.arrived(here.branch, lane, store.learned.latents(here.tensors(lane)))
        outputs = self.reused_outputs(here, lane, decision)
        if (
            not self.decider.observer.shadow
        ):  # which may go on with what was computed: then nothing is to be corrected
            store.note_reused(decision, step, lane)
        return outputs

    def _shadow(self, here: Here, predicted: Any) -> Carried:
        """Computes what has been predicted, for an observer to compare, and goes on with what it says."""
        observer, layout, call = self.decider.observer, here.store.learned, here.call
        observer.computing(self.name, here.step)
        outputs = layout.split((yield Computation(call.args, call.kwargs)))
        features = layout.features(call.tensors, outputs, here.store.parametrisation(here.step.tick))
        goes_on = observer.predicted(self.name, here.step, layout.split(predicted), outputs, features)
        self.decider.tell(here.step, layout, features, outputs)
        return layout.join(goes_on, call.tensors)

    def _compare(self, here: Here, lane: int, tensors: Tensors, outputs: list[Tensor]) -> None:
        """Compares what a lane computed with what would have been reused, and tells the cache scheduler if it asks for that."""
        store, step, leads = here.store, here.step, here.branch is self.decider.leader
        if not (leads or (self.guided_values.is_waiting and store.last_computed(lane) is not None)):
            return
        state, computed = self.decider.lanes[lane], store.learned.evolved(outputs)
        if leads:
            guesses = self.comparison.compare(state, lane, step, store, tensors, computed)
        else:
            guesses = self.comparison.guesses(state.scheduler.compares, lane, step, store, tensors)
        if guesses is None:
            return
        values = [*guesses, computed]
        guided: list[list[Tensor]] | None = values
        if here.lanes == 1:
            guided = self.guided_values.guided(here.asked, step, values, leads=leads)
        if guided is not None:
            *guesses, computed = guided
            squares = squares_of(guesses, computed, store.learned.latents(tensors)[0])
            state.scheduler.compared(store.moments(lane), step.moment, squares)

    def _keep(self, here: Here, lane: int, outputs: list[Tensor]) -> list[Tensor]:
        """Stores what a lane computed, and tells the decider. Returns it with what corrects the ticks before it."""
        decider, step, store = self.decider, here.step, here.store
        tensors = here.tensors(lane)
        seen, evolved = store.learned.latents(tensors), store.learned.evolved(outputs)
        decider.arrived(here.branch, lane, seen)
        pairs = store.pairs(step, tensors, outputs)
        # Compare first: it predicts from what is stored, and `keep` stores what was computed.
        self._compare(here, lane, tensors, [own for own, _ in pairs])
        corrected = store.keep(step, lane, outputs, pairs)
        decider.observe(step, store, lane, outputs)
        decider.computed(here.branch, lane, step, seen, evolved)
        return corrected
