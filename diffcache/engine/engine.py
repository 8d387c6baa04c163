"""The engine: executes one method on one denoiser over one run. It knows no method and no model."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from diffcache.config import CacheConfig, RunFacts
from diffcache.discovery.site_names import is_inside
from diffcache.engine.branches import MAX_BRANCHES, Branch, Branches, conditioning_of
from diffcache.engine.decider import Planner, Verdict
from diffcache.engine.guidance_pass import CONDITIONAL_FIRST, Guidance
from diffcache.engine.inner_sites import Inside
from diffcache.engine.whole_model import Whole
from diffcache.hooks.class_swap import base_class
from diffcache.host.adapters import adapters_of
from diffcache.host.call import Call
from diffcache.host.halves import Halves
from diffcache.host.parallel import Agreement
from diffcache.noise_schedulers.timetable import Turn
from diffcache.prediction.hindsight import DEGREE
from diffcache.reports.records import Done, RunRecord
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.steps import Decision

Forward = Callable[..., Any]

GRADIENTS = "gradients enabled: run the loop under torch.no_grad()"
TRAINING = "training mode: call .eval() on the denoiser"
TOO_MANY_CALLS = "steps not observed: the noise scheduler was not stepped between calls"
SEVERAL_SAMPLES = "steps not observed: several samples are stepped one after another at the same timestep"
NO_LATENT = "no floating tensor among the denoiser's arguments"
OTHER_BATCH = "per_sample: not the leading branch's batch size"


class Engine:
    """One denoiser in one run.

    Args:
        name: the denoiser's, in the report.
        config: the method.
        facts: what the method may know of the run.
        record: where every call is written down.
        separable: rows of a batch can be computed by themselves.
        agreement: among the processes that compute the denoiser together, if several do.
    """

    def __init__(
        self,
        name: str,
        config: CacheConfig,
        facts: RunFacts,
        record: RunRecord,
        *,
        separable: bool,
        agreement: Agreement | None = None,
    ) -> None:
        self.name = name
        self.config = config
        self.record = record
        self.planner = Planner(config, facts, agreement)
        self.format = config.format(facts)
        looked_at = DEGREE if self.planner.looks_back else 0
        self.branches = Branches(max(self.planner.predictor.depth, looked_at), self.format)
        places = config.places(facts)
        inside = is_inside(places)
        self.inside = Inside(name, places, config, self.planner, record) if inside else None
        self.whole = Whole(name, config, self.planner, record)
        rule = config.guidance(facts)
        self.guidance = None if rule is None else Guidance(name, rule, config.guards(facts), record)
        self.halves = Halves(separable=separable)
        self.busy = False

    def call(self, module: nn.Module, forward: Forward, call: Call, turn: Turn) -> Any:
        """One denoiser call: which guidance pass is it, and can it be reused at all? Then site by site."""
        if self.busy:  # an OptimizedModule that fell back to its eager original: the outer call has decided
            return forward(*call.args, **call.kwargs)
        self.busy = True
        try:
            if self.guidance is not None and self.halves.of(call, turn.tick, turn.context):
                return self._one_by_one(module, forward, call, turn)
            return self._call(module, forward, call, turn)
        finally:
            self.busy = False

    def close(self) -> None:
        """Drops every tensor. Explicit: a traceback that somebody keeps would keep this object alive."""
        self.whole.close()
        self.format.memory.rest()
        self.branches.clear()
        self.planner.clear()
        if self.guidance is not None:
            self.guidance.clear()

    @property
    def nbytes(self) -> int:
        """Of what stores keep."""
        return sum(branch.nbytes for branch in self.branches.known)

    def tensors(self) -> Iterator[Tensor]:
        """Every other tensor that is alive for the cache's sake."""
        for branch in self.branches.known:
            yield from branch.kept()
        yield from self.planner.tensors()
        yield from self.whole.tensors()
        if self.guidance is not None:
            yield from self.guidance.tensors()

    def _call(self, module: nn.Module, forward: Forward, call: Call, turn: Turn) -> Any:
        self.branches.begin_tick(turn.tick)
        obstacle = self._obstacle(module, call, turn)
        if obstacle is not None:
            output = forward(*call.args, **call.kwargs)
            step = turn.step(str(self.branches.calls_in_tick))
            self.record.add(self.name, call.batch, [Done(step, [Verdict(Decision.COMPUTE, obstacle)])])
            return output
        branch = self._branch(module, call, turn)
        self.planner.begin(branch, turn.tick, self._lane_count(call, turn))
        if self.guidance is None:
            output = self._execute(module, forward, call, turn, branch)
        elif branch is not self.planner.leader and self.guidance.leads(turn.tick):
            execute = partial(self._execute, module, forward, call, turn, branch)
            output = self.guidance.follow(turn, branch, call, execute)
        else:
            output = self._execute(module, forward, call, turn, branch)
            self.guidance.lead(turn, branch, output)
        self.format.memory.rest()
        self.record.hold(self.name, self.tensors(), self.nbytes, on_host=self.format.memory.on_host)
        return output

    def _execute(self, module: nn.Module, forward: Forward, call: Call, turn: Turn, branch: Branch) -> Any:
        if self.inside is not None:
            return self.inside.run(module, forward, call, turn, branch)
        return self.whole.run(forward, call, turn, branch)

    def _one_by_one(self, module: nn.Module, forward: Forward, call: Call, turn: Turn) -> Any:
        """Takes a batch of both guidance passes apart, so that one can be left out; the conditional one runs first."""
        half, outputs = call.batch // 2, {}
        conditional_first = base_class(type(module)).__name__ in CONDITIONAL_FIRST
        for context, second in (("cond", not conditional_first), ("uncond", conditional_first)):
            args, kwargs = call.rows(list(range(half, call.batch) if second else range(half)))
            part = Call(module, args, kwargs)
            outputs[second] = self._call(module, forward, part, replace(turn, context=context))
        return pytree.tree_map(
            lambda a, b: torch.cat([a, b]) if isinstance(a, Tensor) else a, outputs[False], outputs[True]
        )

    def _obstacle(self, module: nn.Module, call: Call, turn: Turn) -> str | None:
        """Why this call is computed without being looked at, or None."""
        if torch.is_grad_enabled():
            return GRADIENTS
        if module.training:
            return TRAINING
        if self.branches.calls_in_tick >= MAX_BRANCHES:
            return TOO_MANY_CALLS
        if turn.lost:
            return SEVERAL_SAMPLES
        if not call.latents:
            return NO_LATENT
        fits = not self.planner.follows(turn.tick) or self._lane_count(call, turn) == len(self.planner.lanes)
        return None if fits else OTHER_BATCH

    def _branch(self, module: nn.Module, call: Call, turn: Turn) -> Branch:
        leader = self.planner.leader
        conditioning = {} if turn.by_order else conditioning_of(call, leader.sources if leader else set())
        branch = self.branches.identify(conditioning, turn.context, by_order=turn.by_order)
        fingerprint = (call.fingerprint(), adapters_of(module))
        if branch.fingerprint != fingerprint:
            branch.changed = branch.stored
            branch.empty()
            branch.fingerprint = fingerprint
        return branch

    def _lane_count(self, call: Call, turn: Turn) -> int:
        if not self.config.by_sample:
            return 1
        if not self.halves.separable or not call.divisible():
            raise ConfigError(
                f"per_sample cannot tell {self.name}'s samples apart in this call: leave it off."
            )
        return call.batch // 2 if self.halves.of(call, turn.tick, turn.context) else call.batch
