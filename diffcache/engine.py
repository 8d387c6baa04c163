"""The engine: executes one method on one denoiser over one run. It knows no method and no model."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from diffcache.adapters import adapters_of
from diffcache.branches import MAX_BRANCHES, Branch, Branches, conditioning_of
from diffcache.calls import Call
from diffcache.config import CacheConfig, RunFacts
from diffcache.inner import Interior
from diffcache.lanes import lane_of, outputs_of
from diffcache.layout import Layout
from diffcache.planner import Planner, Verdict
from diffcache.predictors import Hold
from diffcache.records import RunRecord
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.steps import Decision, Step
from diffcache.timetable import Timetable

Forward = Callable[..., Any]

GRADIENTS = "gradients enabled: run the loop under torch.no_grad()"
TRAINING = "training mode: call .eval() on the denoiser"
TOO_MANY_CALLS = "steps not observed: the noise scheduler was not stepped between calls"
SEVERAL_SAMPLES = "steps not observed: several samples are stepped one after another at the same timestep"
NO_LATENT = "no floating tensor among the denoiser's arguments"
WRITES_ARGUMENTS = "the denoiser writes into its arguments"
OPAQUE = "the denoiser's output is of a kind that cannot be taken apart: return tensors, tuples, dicts or a ModelOutput"
OTHER_BATCH = "per_sample: not the leading branch's batch size"


@dataclass(frozen=True, slots=True)
class Place:
    """Where in its run a denoiser call stands, as far as the loop knows.

    Attributes:
        tick: of the run.
        timetable: the run's noise levels.
        context: the guidance pass's name, where the pipeline gives one.
        lost: the run's ticks cannot be told apart.
        by_order: tell guidance passes apart by their order inside the tick.
    """

    tick: int
    timetable: Timetable
    context: str | None
    by_order: bool
    lost: bool = False

    def step(self, branch: str) -> Step:
        times = self.timetable
        return Step(self.tick, times.num_ticks, branch, times.sigma(self.tick), times.repeats(self.tick))


class Engine:
    """One denoiser in one run.

    Args:
        site: the denoiser's name in the report.
        config: the method.
        facts: what the method may know of the run.
        record: where every call is written down.
    """

    def __init__(self, site: str, config: CacheConfig, facts: RunFacts, record: RunRecord) -> None:
        self.site = site
        self.config = config
        self.record = record
        self.planner = Planner(config, facts)
        self.branches = Branches(self.planner.predictor.depth)
        self.busy = False

    def call(self, module: nn.Module, forward: Forward, call: Call, place: Place) -> Any:
        """One denoiser call: decide, then compute and store, or predict."""
        if self.busy:  # an OptimizedModule that fell back to its eager original: the outer call has decided
            return forward(*call.args, **call.kwargs)
        self.branches.begin_tick(place.tick)
        obstacle = self._obstacle(module, call, place)
        if obstacle is not None:
            name, verdicts = str(self.branches.calls_in_tick), [Verdict(Decision.COMPUTE, obstacle)]
            self.record.add(place.tick, name, self.site, verdicts, call.batch)
            return self._inside(forward, call.args, call.kwargs)
        branch = self._branch(module, call, place)
        lanes = self._lane_count(call)
        verdicts = self.planner.verdicts(place.step(branch.name), branch, call.tensors, lanes)
        self.record.add(place.tick, branch.name, self.site, verdicts, call.batch)
        if all(verdict.decision.computes for verdict in verdicts):
            return self._compute(module, place, branch, call, forward)
        if branch.interior is not None:
            return self._reuse_inside(module, place, branch, call, forward, verdicts[0])
        return self._reuse(place, branch, call, forward, verdicts)

    def close(self) -> None:
        """Drops every tensor. Explicit: a traceback that somebody keeps would keep this object alive."""
        self.branches.clear()
        self.planner.clear()

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor that is alive for the cache's sake."""
        for branch in self.branches.known:
            yield from branch.store.tensors()
            yield from branch.kept()
            if branch.interior is not None:
                yield from branch.interior.tensors()
        yield from self.planner.tensors()

    def _obstacle(self, module: nn.Module, call: Call, place: Place) -> str | None:
        """Why this call is computed without being looked at, or None."""
        if torch.is_grad_enabled():
            return GRADIENTS
        if module.training:
            return TRAINING
        if self.branches.calls_in_tick >= MAX_BRANCHES:
            return TOO_MANY_CALLS
        if place.lost:
            return SEVERAL_SAMPLES
        if not call.latents:
            return NO_LATENT
        fits = not self.planner.follows(place.tick) or self._lane_count(call) == len(self.planner.lanes)
        return None if fits else OTHER_BATCH

    def _branch(self, module: nn.Module, call: Call, place: Place) -> Branch:
        leader = self.planner.leader
        evolving = leader.store.layout.sources() if leader and leader.store.layout else set()
        conditioning = {} if place.by_order else conditioning_of(call, evolving)
        branch = self.branches.identify(conditioning, place.context, by_order=place.by_order)
        fingerprint = (call.fingerprint(), adapters_of(module))
        if branch.fingerprint != fingerprint:
            branch.changed = len(branch.store) > 0
            branch.empty()
            branch.fingerprint = fingerprint
        return branch

    def _lane_count(self, call: Call) -> int:
        if not getattr(self.config, "per_sample", False):
            return 1
        if not call.divisible():
            raise ConfigError(
                f"per_sample cannot tell {self.site}'s samples apart in this call: leave it off."
            )
        return call.batch

    def _inside(self, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.busy = True
        try:
            return forward(*args, **kwargs)
        finally:
            self.busy = False

    def _compute(self, module: nn.Module, place: Place, branch: Branch, call: Call, forward: Forward) -> Any:
        before = call.state()
        output = self._inside(
            self._storing(module, branch, call, forward, place.tick), call.args, call.kwargs
        )
        if call.state() != before:  # a K/V cache, a list of outputs: skipping the call would skip the write
            self.record.amend(WRITES_ARGUMENTS)
            branch.empty()
            return output
        layout = Layout(call, output, residual=self.config.residual)
        if not layout.complete:
            self.record.amend(OPAQUE)
            branch.empty()
            return output
        branch.store.layout = layout
        branch.changed = False
        if branch.interior is not None:
            self._split(branch.interior)
        lanes = len(self.planner.lanes)
        outputs = layout.split(output)
        for lane in range(lanes):
            tensors = lane_of(call.tensors, lane, lanes)
            self._keep(place, branch, lane, tensors, outputs_of(outputs, lane, lanes))
        self.record.hold(self.site, self.tensors())
        return output

    def _reuse(
        self, place: Place, branch: Branch, call: Call, forward: Forward, verdicts: list[Verdict]
    ) -> Any:
        """Predicts the lanes that are reused; the others are computed as one smaller batch."""
        store, lanes = branch.store, len(verdicts)
        rows = [lane for lane, verdict in enumerate(verdicts) if verdict.decision.computes]
        computed: list[Tensor] = []
        if rows:
            args, kwargs = call.rows(rows)
            computed = store.learned.split(self._inside(forward, args, kwargs))
        parts = []
        for lane, verdict in enumerate(verdicts):
            tensors = lane_of(call.tensors, lane, lanes)
            if verdict.decision.computes:
                outputs = outputs_of(computed, rows.index(lane), lanes)
                self._keep(place, branch, lane, tensors, outputs)
            else:
                self.planner.arrived(branch, lane, tensors)
                predictor = self.planner.predictor_of(verdict)
                outputs = store.value(predictor, place.tick, place.timetable, lane, tensors)
            parts.append(outputs)
        self.record.hold(self.site, self.tensors())
        joined = parts[0] if lanes == 1 else [torch.cat(tensors) for tensors in zip(*parts, strict=True)]
        return store.learned.join(joined, call.tensors)

    def _storing(self, module: nn.Module, branch: Branch, call: Call, forward: Forward, tick: int) -> Forward:
        """The forward, made to store the sites inside where the method wants those."""
        if self.config.where == "model":
            return forward
        if branch.interior is None:
            depth = self.planner.predictor.depth
            branch.interior = Interior(self.config.where, self.config.residual, depth)
        interior = branch.interior
        return lambda *args, **kwargs: interior.compute(module, forward, call, tick)

    def _reuse_inside(
        self, module: nn.Module, place: Place, branch: Branch, call: Call, forward: Forward, verdict: Verdict
    ) -> Any:
        """Runs the forward without what its sites span."""
        interior = branch.interior
        assert interior is not None
        self.planner.arrived(branch, 0, call.tensors)
        predictor = self.planner.predictor_of(verdict)
        self._split(interior)
        return self._inside(
            lambda *args, **kwargs: interior.reuse(
                module, forward, call, predictor, place.tick, place.timetable
            ),
            call.args,
            call.kwargs,
        )

    def _split(self, interior: Interior) -> None:
        self.record.split([f"{self.site}.{site.name}" for site in interior.sites or ()], interior.share)

    def _keep(
        self, place: Place, branch: Branch, lane: int, tensors: dict[str, Tensor], outputs: list[Tensor]
    ) -> None:
        """Stores what a lane computed, and tells the planner."""
        self.planner.arrived(branch, lane, tensors)
        self._compare(place, branch, lane, tensors, outputs)
        if branch.interior is None:
            branch.store.push(place.tick, lane, tensors, outputs)
        else:
            branch.store.note(place.tick, lane)
        self.planner.computed(branch, lane, place.tick, tensors, outputs)

    def _compare(
        self, place: Place, branch: Branch, lane: int, tensors: dict[str, Tensor], outputs: list[Tensor]
    ) -> None:
        """Lets the watch see what the leading branch would have been given instead of what was computed."""
        watch, store = self.planner.lanes[lane].watch, branch.store
        if (
            watch is None
            or branch is not self.planner.leader
            or branch.interior
            or len(store.rings[lane]) < 2
        ):
            return
        guesses = [
            store.learned.evolved(store.value(predictor, place.tick, place.timetable, lane, tensors))
            for predictor in (self.planner.predictor, Hold())
        ]
        watch.compare(guesses[0], guesses[1], store.learned.evolved(outputs))
