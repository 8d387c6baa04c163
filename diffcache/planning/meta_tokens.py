"""Calls of some tokens in a dry run: keys and values are held on the meta device, by the shapes that one real call had."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from diffcache.engine.branch import Branch
from diffcache.engine.execution import Carried, Invocation, Parts, carried_out
from diffcache.engine.some_tokens import Chosen, SomeTokens, work_of
from diffcache.engine.whole_model import Here
from diffcache.hooks.watcher import watched
from diffcache.planning.recorded_calls import RecordedCalls
from diffcache.prediction.predictors import Polynomial
from diffcache.schedulers.steps import Decision, Step, Verdict
from diffcache.store.formats import Format, values_of
from diffcache.store.key_values import KeyValues
from diffcache.store.rings import Store, StoreSetup
from diffcache.store.streams import Layout
from diffcache.tokens.grids import changed_places
from diffcache.tokens.learning import TokenPlan
from diffcache.tokens.passes import FullPass, TokenState
from diffcache.tokens.positions import block_paths
from diffcache.tokens.row_rule import Region


@dataclass(frozen=True)
class _Form:
    """What a store is given: shapes, dtypes, and whether residuals are stored."""

    is_key_values: bool
    layout: Layout | None
    tensors: tuple[tuple[tuple[int, ...], torch.dtype, bool], ...]


class DrySomeTokens(SomeTokens):
    """Executes verdicts on recorded calls; a call of all tokens leaves what it would keep, without content.

    Args:
        parts: what it works with.
        comparison: as for `WholeModel`.
        recorded: real calls, which stand in for those of the same form.
        note: called when it is known what is kept of a denoiser's blocks, with the plan.
    """

    def __init__(
        self, parts: Parts, comparison: Any, recorded: RecordedCalls, note: Callable[[TokenPlan], None]
    ) -> None:
        super().__init__(parts, comparison)
        self._recorded, self._note = recorded, note
        self._forms: dict[Any, dict[str, _Form]] = {}
        self._real: Invocation | None = None

    def run(self, asked: Invocation, step: Step, branch: Branch, lanes: int) -> Carried:
        yield from ()  # it needs nothing
        found = self._recorded.whole(self.name, asked)
        self._real = asked
        again = replace(asked, forward=found.again, call=found.call)
        carried_out(super().run(again, step, branch, lanes), found.again)
        self._real = None
        return found.moved()

    def forwarded(self, here: Here) -> Carried:
        yield from ()  # nor does this
        assert self._real is not None
        asked, real = here.asked, self._real
        plan = self._plan(real, here)
        if plan is None:
            return asked.forward(*asked.call.args, **asked.call.kwargs)
        self._note(plan)
        state = self._state(here.branch)
        if isinstance(self.rule.source, Region):
            rows = None
            self._hold_places(real, here, plan, state)
        else:
            rows = self._rows_for(real, here, plan, state)
        if rows is None:
            self._keep_blanks(real, here, plan, state)
            state.tick, state.since = here.step.tick, 0
            self.note(real, here, plan)
        else:
            state.since += 1
            here.verdict, here.work = Verdict(Decision.ROWS), work_of(plan, rows)
        return asked.forward(*asked.call.args, **asked.call.kwargs)

    def _hold_places(self, real: Invocation, here: Here, plan: TokenPlan, state: TokenState) -> None:
        """A region is known in the run only, but not how large its mask is: that is held from the first call of some tokens on."""
        step, full = here.step, self.rule.full
        if state.tick is None or full.asks(step.tick, step.num_ticks, state.tick, state.since):
            return
        latent = plan.entry.latent_of(real.call)
        places = torch.empty_like(changed_places(latent, latent), device="meta")
        self._chosen.setdefault(real.call.batch, Chosen([], places, plan.entry))

    def _keep_blanks(self, real: Invocation, here: Here, plan: TokenPlan, state: TokenState) -> None:
        key = here.branch.name, real.call.fingerprint(real.module)
        if key not in self._forms:
            self._forms[key] = self._formed(real, here, plan)
        for name, form in self._forms[key].items():
            store = state.stores.get(name)
            if store is None:
                store = state.stores[name] = (
                    KeyValues(state.setup) if form.is_key_values else Store(state.setup)
                )
                store.empty(1)
                store.layout = form.layout
            blanks = [
                (torch.empty(shape, dtype=dtype, device="meta"), residual)
                for shape, dtype, residual in form.tensors
            ]
            if isinstance(store, KeyValues):
                store.put(here.step.tick, blanks[0][0], blanks[1][0])
            else:
                pairs = [(blank, blank if residual else None) for blank, residual in blanks]
                store.push(here.step.tick, 0, pairs)

    def _formed(self, real: Invocation, here: Here, plan: TokenPlan) -> dict[str, _Form]:
        """What one real call of all tokens keeps."""
        setup = StoreSetup(Polynomial(0), Format(), here.branch.setup.timetable)
        state = TokenState(setup, {})
        full = FullPass(block_paths(real.module), plan, state, here.step.tick)
        with watched(full):
            pytree.tree_leaves(real.forward(*real.call.args, **real.call.kwargs))
        return {
            name: _Form(
                isinstance(store, KeyValues),
                store.layout,
                tuple(
                    (tuple(values_of(kept).shape), *kind)
                    for kept, kind in zip(store.rings[0][0].tensors, store.kinds(), strict=True)
                ),
            )
            for name, store in state.stores.items()
        }
