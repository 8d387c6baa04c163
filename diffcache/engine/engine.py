"""The engine: executes one method on one denoiser over one run. It knows no method and no model."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

from torch import Tensor

from diffcache.discovery.site_names import is_inside
from diffcache.engine.branch import Branch
from diffcache.engine.branches import Branches
from diffcache.engine.choices import Choices
from diffcache.engine.chosen_corrections import step_corrections_for
from diffcache.engine.decider import Decider
from diffcache.engine.execution import Carried, Computation, Execution, Invocation, Parts, carried_out
from diffcache.engine.guidance_pass import RebuiltPass, one_by_one
from diffcache.engine.inner_sites import InnerSites
from diffcache.engine.obstacles import KEPT_ATTENTION, OTHER_BATCH, misfit, obstacle_to
from diffcache.engine.progress import Progress
from diffcache.engine.returned_outputs import ReturnedOutputs
from diffcache.engine.some_tokens import SomeTokens
from diffcache.engine.step_correction import StepCorrection
from diffcache.engine.whole_model import WholeModel
from diffcache.host.kept_attention import KeptAttention
from diffcache.host.parallel import Agreement
from diffcache.host.rows import BatchedGuidance
from diffcache.reports.records import Done, RunRecord
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.schedule import GUIDANCE_OPTIONS, GUIDANCE_SCALE, INFLUENCE
from diffcache.schedulers.steps import Decision, Verdict
from diffcache.store.formats import Format
from diffcache.store.rings import StoreSetup

UNCORRECTED = "the last step is not corrected, since the run went otherwise than those that the schedule was fitted to, or its steps were not seen"


def execution_for(parts: Parts) -> Execution:
    """What executes a method: on the whole denoiser, or at sites inside it."""
    if is_inside(parts.choices.sites):
        return InnerSites(parts)
    return WholeModel(parts) if parts.choices.rows is None else SomeTokens(parts)


class Engine:
    """One denoiser in one run.

    Args:
        choices: the method's.
        record: where every call is written down.
        progress: where the run stands.
        agreement: among the processes that compute the denoiser together, if several do.
        execution: makes what executes decisions; a plan executes them without computing.

    Attributes:
        name: the denoiser's, in the report.
        branches: the guidance passes that have been called.
        decider: what is computed and what is reused.
        step_corrections: what corrects in the noise scheduler's steps.
        returned: what each guidance pass of this tick has returned, if somebody asks.
    """

    def __init__(
        self,
        choices: Choices,
        record: RunRecord,
        progress: Progress,
        agreement: Agreement | None = None,
        execution: Callable[[Parts], Execution] = execution_for,
    ) -> None:
        name, rule = choices.facts.denoiser, choices.guidance_rule
        self.name = name
        self.record = record
        self.progress = progress
        self.decider = Decider(choices, agreement)
        self.setup = StoreSetup(
            choices.predictor,
            choices.format,
            progress.timetable,
            choices.corrector,
            hindsight=choices.hindsight,
        )
        self.branches = Branches(self.setup)
        self.execution = execution(Parts(self.decider, record))
        self.step_corrections = self._corrections_for(choices)
        self.rebuilt_pass = None if rule is None else RebuiltPass(name, rule, choices.guards, record)
        self.batched_guidance = BatchedGuidance()
        self.kept_attention = KeptAttention()
        self.returned = ReturnedOutputs()
        self._is_busy = False

    @property
    def choices(self) -> Choices:
        """The method's, by which it is decided now."""
        return self.decider.choices

    def call(self, asked: Invocation) -> Any:
        """One denoiser call."""
        # An OptimizedModule that fell back to its eager original: the outer call has decided.
        if self._is_busy:
            return asked.forward(*asked.call.args, **asked.call.kwargs)
        return carried_out(self.carry_out(asked), asked.forward)

    def carry_out(self, asked: Invocation) -> Carried:
        """One denoiser call: which guidance pass is it, and can it be reused at all? Then site by site.

        It computes nothing itself but what cannot be shared with other runs (a branch's first call with sites inside).
        """
        self._is_busy = True
        try:
            if self.rebuilt_pass is not None and self.batched_guidance.found_in(
                asked.module, asked.call, self.progress.tick, asked.context
            ):
                return (yield from one_by_one(asked, self._call))
            return (yield from self._call(asked))
        finally:
            self._is_busy = False

    def close(self) -> None:
        """Drops every tensor. Explicit: a traceback that somebody keeps would keep this object alive."""
        self.returned.stop()
        # All is dropped, whatever one of these raises. They run in reverse: what is added last is dropped first.
        with ExitStack() as stack:
            if self.rebuilt_pass is not None:
                stack.callback(self.rebuilt_pass.clear)
            for correction in self.step_corrections:
                stack.callback(correction.forget)
            for drop in (self.decider.clear, self.branches.clear, self.setup.format.memory.end_call):
                stack.callback(drop)
            self.execution.close()
            # Before anything is dropped: the expected error is told by the schedulers, and an uncorrected run has none.
            self._note_missing()
            self.note_expected_error()

    def _note_missing(self) -> None:
        """Writes down that the result was to be corrected, and is not."""
        if any(correction.is_missing for correction in self.step_corrections):
            self.record.is_uncorrected = True
            self.record.corrections = {}
            self.record.notes.append(UNCORRECTED)

    def note_expected_error(self) -> None:
        """Writes down the error that is expected of the result, and what is to be said of it."""
        if (
            self.record.is_uncorrected
            or not self.decider.expects_error
            or self.record.fresh_noise is not None
            or self.record.guidance_changed
        ):
            return
        reused = self.record.reused_ticks()
        every = range(self.progress.timetable.num_ticks or 0)
        expected = self.decider.expected_error([tick for tick in every if tick not in reused])
        if expected is not None:
            self.record.expected_error = max(expected, self.record.expected_error or 0.0)
            remark = self.decider.remark(expected)
            if remark is not None:
                self.record.notes.append(remark)

    def forget(self) -> None:
        """Drops what is stored, between two calls: the next one is computed."""
        for branch in self.branches.known:
            branch.empty()
        self.decider.forget()
        self.returned.take()
        if self.rebuilt_pass is not None:
            self.rebuilt_pass.clear()
        for correction in self.step_corrections:
            correction.forget()
        self.account()

    def choose_anew(self, choices: Choices) -> None:
        """More is known of the run after its first tick, so the method has chosen again: as before, but for when and how it predicts and corrects."""
        is_corrected_alike = (choices.hindsight, choices.last_step) == (
            self.choices.hindsight,
            self.choices.last_step,
        )
        self.setup.predict_with(choices.predictor, hindsight=choices.hindsight)
        self.decider.choose_anew(choices)
        if not is_corrected_alike:
            for correction in self.step_corrections:
                correction.forget()
            self.step_corrections = self._corrections_for(choices)

    def recode(self, format: Format) -> None:
        """Between two calls: what is stored, and what will be, is kept in another format."""
        for correction in self.step_corrections:
            correction.recode()
        for branch in self.branches.known:
            for store in branch.stores.values():
                store.recode(format)
            if branch.tokens is not None:
                branch.tokens.setup.format = format
        self.setup.format = format
        self.account()

    def describe(self) -> dict[str, Any]:
        """How the run predicts, as a schedule writes it down."""
        choices = self.choices
        return {
            **choices.predictor.describe(),
            "basis": choices.basis,
            **({} if choices.cache_dtype is None else {"cache_dtype": choices.cache_dtype}),
            **({"hindsight": True} if choices.hindsight else {}),
            **({} if choices.guidance_rule is None else {"guidance": choices.guidance_rule.describe()}),
            **({} if (scale := choices.facts.guidance.scale) is None else {GUIDANCE_SCALE: scale}),
            **({} if not (options := choices.facts.guidance.options) else {GUIDANCE_OPTIONS: dict(options)}),
            **({} if (on_result := choices.facts.on_result) is None else {INFLUENCE: on_result}),
        }

    def account(self) -> None:
        """A guidance pass is over: writes down how much is held now."""
        stored = 0
        for branch in self.branches.known:
            for store in branch.stores.values():
                stored += store.nbytes
        self.record.hold(self.name, self.tensors(), stored, on_host=self.setup.format.memory.on_host)

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor outside stores that is alive for the cache's sake."""
        for branch in self.branches.known:
            for path in branch.remade:  # pipelines make these anew at every tick: nobody else has last tick's
                argument = branch.conditioning.get(path)
                if argument is not None and isinstance(argument.value, Tensor):
                    yield argument.value
        for lane in self.decider.lanes:
            if lane.scheduler.keeps_tensors:
                yield from lane.scheduler.held()
        if self.setup.corrector is not None:
            yield from self.setup.corrector.tensors()
        yield from self.execution.tensors()
        if self.rebuilt_pass is not None:
            yield from self.rebuilt_pass.tensors()
        for correction in self.step_corrections:
            yield from correction.tensors()
        yield from self.returned.tensors()

    def _corrections_for(self, choices: Choices) -> tuple[StepCorrection, ...]:
        hand_written = self.progress.hand_written
        return step_corrections_for(choices, self.setup, self.decider.observer, hand_written=hand_written)

    def _call(self, asked: Invocation) -> Carried:
        call, tick, timetable = asked.call, self.progress.tick, self.progress.timetable
        self.returned.begin_tick(tick)
        self.branches.begin_tick(tick)
        step = timetable.step(tick)
        obstacle = self._obstacle(asked)
        if obstacle is None and self.progress.unsure:
            obstacle = misfit(self.choices)
        if obstacle is not None:
            output = yield Computation(call.args, call.kwargs)
            step = step._replace(branch=self.branches.passed_by(asked.context))
            self.record.add(self.name, call.batch, [Done(step, [Verdict(Decision.COMPUTE, obstacle)])])
            return output
        branch = self._branch(asked)
        lanes = self._lane_count(asked) if self.choices.per_sample else 1
        step = step._replace(branch=branch.name)
        self.decider.begin_call(branch, tick, lanes)
        if self.rebuilt_pass is None:
            output = yield from self.execution.run(asked, step, branch, lanes)
        elif branch is not self.decider.leader and self.rebuilt_pass.leads(tick):
            compute = partial(self.execution.run, asked, step, branch, lanes)
            output = yield from self.rebuilt_pass.follow(step, branch, call, compute)
        else:
            output = yield from self.execution.run(asked, step, branch, lanes)
            self.rebuilt_pass.lead(tick, branch, asked.lasting(output))
        if self.setup.format.memory.on_host:
            self.setup.format.memory.end_call()
        if self.returned.is_kept:
            self.returned.add(branch, asked.lasting(output))
        self.account()
        return output

    def _obstacle(self, asked: Invocation) -> str | None:
        """Why this call is computed without being looked at, or None."""
        obstacle = obstacle_to(asked, self.progress, self.branches.calls)
        if obstacle is not None:
            return obstacle
        if self.kept_attention.changes(asked.network):
            return KEPT_ATTENTION
        if self.choices.per_sample and self.decider.follows(self.progress.tick):
            return None if self._lane_count(asked) == len(self.decider.lanes) else OTHER_BATCH
        return None

    def _branch(self, asked: Invocation) -> Branch:
        hand_written, leader = self.progress.hand_written, self.decider.leader
        conditioning = asked.call.conditioning(leader.sources if leader else ())
        branch = self.branches.identify(conditioning, asked.context, hand_written=hand_written)
        branch.recognise(asked.call.fingerprint(asked.module))
        return branch

    def _lane_count(self, asked: Invocation) -> int:
        """How many lanes this call has: asked only of a method that decides for each sample by itself."""
        if not self.batched_guidance.is_separable(asked.module) or not asked.call.divisible():
            raise ConfigError(
                f"per_sample cannot tell {self.name}'s samples apart in this call: leave it off."
            )
        doubled = self.batched_guidance.found_in(asked.module, asked.call, self.progress.tick, asked.context)
        return asked.call.batch // 2 if doubled else asked.call.batch
