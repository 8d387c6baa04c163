"""Computed calls of some tokens only: the rest of the picture is carried on from the last call of all tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from diffcache.engine.branch import Branch
from diffcache.engine.comparison import Comparison
from diffcache.engine.execution import Carried, Invocation, Parts
from diffcache.engine.whole_model import Here, WholeModel
from diffcache.hooks.attention_backends import active_backend
from diffcache.hooks.watcher import watched
from diffcache.host.kept_with import KeptWith
from diffcache.host.network_facts import NetworkFacts
from diffcache.host.structure import PROCESSOR
from diffcache.prediction.predictors import Polynomial
from diffcache.schedulers.steps import Decision, Step, Verdict
from diffcache.store.rings import StoreSetup
from diffcache.tokens.attention import Strayed
from diffcache.tokens.grids import grid_told
from diffcache.tokens.layout import Rows, SampleRows, rows_of_samples
from diffcache.tokens.learning import TokenPlan, learn
from diffcache.tokens.passes import FullPass, RowPass, TokenState
from diffcache.tokens.positions import Entry, block_paths, rows_of_latents
from diffcache.tokens.row_rule import Masked, Moving, Region, RowRule, Sight

STRAYED = "the denoiser called its blocks otherwise than before"

_plans: KeptWith[TokenPlan | str] = KeptWith(16)
"""How denoisers compute some of their tokens, or why they cannot, by the form of a call; no tensors of a run."""


MANY = "rows: {share:.0%} of the tokens were asked for, so that all are computed"

FAR = (
    "rows= saved nothing: computed steps lie so far apart that each of them computes all tokens; ask for a smaller speed-up or threshold, "
    "or leave rows= out"
)

NO_REFERENCE = (
    "rows: no token stands still between ticks, so there is no reference to leave out or to compare an edit with: "
    "pass rows= a mask"
)


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a source of rows gave.

    Attributes:
        rows: the tokens.
        places: of the latents, bool [samples or 1, places...].
        entry: of the denoiser that was asked.
    """

    rows: list[SampleRows]
    places: Tensor
    entry: Entry


class SomeTokens(WholeModel):
    """Executes verdicts on whole calls; calls that are computed may compute some tokens.

    Args:
        parts: what it works with; its choices have a row rule.
        comparison: as for `WholeModel`.
    """

    def __init__(self, parts: Parts, comparison: Comparison | None = None) -> None:
        super().__init__(parts, comparison)
        assert parts.choices.rows is not None
        self.rule: RowRule = parts.choices.rows
        self._chosen: dict[int, Chosen] = {}  # by the number of samples, which guidance passes may differ in
        self._before: dict[str, tuple[int, Tensor, float | None]] = {}
        self._was_far = self._has_chosen = False

    def tensors(self) -> Iterator[Tensor]:
        yield from super().tensors()
        yield from (latent for _, latent, _ in self._before.values())
        yield from (chosen.places for chosen in self._chosen.values())

    def close(self) -> None:
        super().close()
        if self._was_far and not self._has_chosen:
            self.record.notes.append(FAR)
        self._before, self._chosen = {}, {}

    def forwarded(self, here: Here) -> Carried:
        asked = here.asked
        plan = self._plan(asked, here)
        if plan is None:
            return (yield from super().forwarded(here))
        branch, step, call = here.branch, here.step, asked.call
        state = self._state(branch)
        rows = self._rows_for(asked, here, plan, state)
        paths = block_paths(asked.module)
        try:
            if rows is None:
                return self._in_full(asked, here, FullPass(paths, plan, state, step.tick))
            at = step, self._order(state, step)
            some = RowPass(paths, plan, state, rows, at)
            with watched(some):
                output = asked.forward(*call.args, **call.kwargs)
            if not some.is_complete:
                raise Strayed
        except Strayed:
            state.drop()
            here.verdict = Verdict(Decision.COMPUTE, STRAYED)
            return (yield from super().forwarded(here))
        state.since += 1
        here.verdict = Verdict(Decision.ROWS)
        here.work = work_of(plan, rows)
        return self._held(here, output) if self.rule.holds else output

    def reused_outputs(self, here: Here, lane: int, decision: Decision) -> list[Tensor]:
        """Of a rule that holds the other tokens, only the chosen ones are predicted."""
        outputs = super().reused_outputs(here, lane, decision)
        if not self.rule.holds or here.call.batch not in self._chosen or decision is Decision.HOLD:
            return outputs
        held = here.store.value(Decision.HOLD, here.step, lane, here.call.tensors)
        return self._merged(here, outputs, held)

    def _in_full(self, asked: Invocation, here: Here, full: FullPass) -> Any:
        with watched(full):
            output = asked.forward(*asked.call.args, **asked.call.kwargs)
        if not full.is_complete:
            raise Strayed
        full.state.tick, full.state.since = here.step.tick, 0
        self.note(asked, here, full.plan)
        return output

    def note(self, asked: Invocation, here: Here, plan: TokenPlan) -> None:
        """Keeps the latents of a call of all tokens, for the source of rows to look at."""
        latent = plan.entry.latent_of(asked.call).clone()
        self._before[here.branch.name] = here.step.tick, latent, here.step.sigma

    def _rows_for(
        self, asked: Invocation, here: Here, plan: TokenPlan, state: TokenState
    ) -> list[SampleRows] | None:
        """The tokens that this call computes; None for all of them."""
        step, batch, full = here.step, asked.call.batch, self.rule.full
        if state.tick is None:
            return None
        asks_all = full.asks(step.tick, step.num_ticks, state.tick, state.since)
        # A mask is looked at even where all tokens are computed, so that a wrong one is refused at once.
        if batch not in self._chosen and (not asks_all or isinstance(self.rule.source, Masked)):
            self._chosen[batch] = self._choose(asked, here, plan)
        if asks_all:
            self._was_far = self._was_far or full.reaches_not(step.tick, state.tick)
            return None
        self._has_chosen = True
        chosen = self._chosen[batch]
        rows = chosen.rows
        share = mean_of(rows, lambda some: len(some)) / plan.entry.layout.count
        if share > self.rule.most:
            unknown = isinstance(self.rule.source, (Moving, Region)) and bool(chosen.places.all())
            here.verdict = Verdict(Decision.COMPUTE, NO_REFERENCE if unknown else MANY.format(share=share))
            return None
        return rows

    def _choose(self, asked: Invocation, here: Here, plan: TokenPlan) -> Chosen:
        """Asks the source, once in a run: the tokens of the places that it gives."""
        _, before, sigma = self._before[here.branch.name]
        call, entry = asked.call, plan.entry
        sight = Sight(entry.latent_of(call), before, here.step.sigma, sigma)
        if sight.latent.ndim == 3:
            sight = replace(sight, grid=grid_told(call, sight.moving[0]))
        places = self.rule.source(sight)
        marked = rows_of_latents(asked.module, asked.forward, call, entry, entry.masks_of(call, places))
        return Chosen(rows_of_samples(marked, apart=plan.apart), places, entry)

    def _order(self, state: TokenState, step: Step) -> Decision:
        """A line through the last two full calls, unless it would go on for longer than the gap between them."""
        ring = state.others().rings[0]
        if self.rule.order == 0 or len(ring) < 2:
            return Decision.HOLD
        newest, older = ring[0].tick, ring[1].tick
        return Decision.LINE if step.tick - newest <= newest - older else Decision.HOLD

    def _held(self, here: Here, output: Any) -> Any:
        layout = here.store.learned
        outputs = layout.split(output)
        held = here.store.value(Decision.HOLD, here.step, 0, here.call.tensors)
        return layout.join(self._merged(here, outputs, held), here.call.tensors)

    def _merged(self, here: Here, chosen: list[Tensor], others: list[Tensor]) -> list[Tensor]:
        """The first outputs at the chosen places, the second elsewhere."""
        known = self._chosen[here.call.batch]
        masks = known.entry.masks_of(here.call, known.places)
        if here.call.batched:
            masks *= len(chosen)
        return [torch.where(mask, a, b) if a.shape == mask.shape else a
                for mask, a, b in zip(masks, chosen, others, strict=True)]  # fmt: skip

    def _state(self, branch: Branch) -> TokenState:
        if branch.tokens is None:
            shared = branch.setup
            setup = StoreSetup(Polynomial(self.rule.order, "angle"), shared.format, shared.timetable)
            branch.tokens = TokenState(setup, branch.stores)
        return branch.tokens

    def _plan(self, asked: Invocation, here: Here) -> TokenPlan | None:
        """How this denoiser computes some tokens; learned at the first call of its form that anybody makes."""
        module, call = asked.module, asked.call
        if asked.reuses_memory:
            here.verdict = Verdict(
                Decision.COMPUTE, "rows: the denoiser is compiled: leave rows= out, or its blocks uncompiled"
            )
            return None
        key = here.branch.fingerprint, processors_of(asked.network)
        plan = _plans.get(module, key)
        if plan is None:
            learned = learn(module, asked.forward, call)
            plan = learned.plan or f"rows: {learned.reason}"
            _plans.put(module, key, plan)
        if isinstance(plan, str):
            here.verdict = Verdict(Decision.COMPUTE, plan)
            return None
        return plan


def work_of(plan: TokenPlan, rows: Sequence[SampleRows]) -> float:
    """The share of the work of a full call: (n + T) / (N + T) in the blocks with a rule, all of the others'."""
    longest = max((sequence for rule in plan.units.values() for sequence in rule.attentions if sequence is not None),
                  key=lambda sequence: sequence.length, default=None)  # fmt: skip
    (own,) = plan.entry.layout.sequences.values()
    sequence = own if longest is None else longest
    part = mean_of(rows, lambda some: len(some.index(sequence))) / sequence.length
    return 1 - plan.share * (1 - part)


def mean_of(rows: Sequence[SampleRows], count: Callable[[Rows], int]) -> float:
    """The mean of a count over a batch's samples."""
    samples = [1 if one.samples is None else len(one.samples) for one in rows]
    counted = (count(one.rows) * n for one, n in zip(rows, samples, strict=True))
    return sum(counted) / sum(samples)


def processors_of(facts: NetworkFacts) -> tuple[str, ...]:
    """What computes a denoiser's attentions: classes of processors, and their backends."""
    found = []
    for attention in facts.attentions:
        processor = getattr(attention(), PROCESSOR, None)
        if processor is not None:
            backend = getattr(processor, "_attention_backend", None) or active_backend()
            found.append(f"{type(processor).__name__} {backend}")
    return tuple(dict.fromkeys(found))
