"""Two ways through the blocks: all tokens are computed and their keys and values kept, or some tokens beside what was kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from diffcache.discovery.unit_recorder import CallNames
from diffcache.hooks.attention_calls import AttentionCall, AttentionCalls
from diffcache.host.call import Call
from diffcache.schedulers.steps import Decision, Step
from diffcache.store.key_values import KeyValues
from diffcache.store.rings import Store, StoreSetup
from diffcache.tokens.attention import Completing, Strayed
from diffcache.tokens.layout import SampleRows, TokenSequence
from diffcache.tokens.learning import TokenPlan
from diffcache.tokens.rules import Gathered, UnitRule, joined, put_back

OTHERS = "tokens"
"""Name of the store of what the last block returns."""


@dataclass
class TokenState:
    """What one guidance pass keeps of the tokens.

    Attributes:
        setup: of its stores.
        stores: of keys and values by block and attention, and of what the last block returns.
        masks: attention masks of the newest full call, by block and attention.
        since: calls of some tokens after the newest full call.
        tick: of the newest full call; None before the first.
    """

    setup: StoreSetup
    stores: dict[str, Store]
    masks: dict[str, Tensor | None] = field(default_factory=dict)
    since: int = 0
    tick: int | None = None

    def key_values(self, unit: str, i: int) -> KeyValues:
        """Those of an attention of a block."""
        name = f"{unit}.attention {i}"
        store = self.stores.get(name)
        if not isinstance(store, KeyValues):
            store = self.stores[name] = KeyValues(self.setup)
        return store

    def others(self) -> Store:
        """That of what the last block returns."""
        store = self.stores.get(OTHERS)
        if store is None:
            store = self.stores[OTHERS] = Store(self.setup)
            store.empty(1)
        return store

    def drop(self) -> None:
        """Drops everything: what is kept fits no more."""
        for name in [name for name in self.stores if name == OTHERS or ".attention " in name]:
            self.stores.pop(name).clear()
        self.masks, self.since, self.tick = {}, 0, None


class _Blocks(ABC):
    """Counts the calls of the blocks, and leaves those without a rule alone."""

    def __init__(self, paths: dict[int, str], plan: TokenPlan) -> None:
        self.watches = paths
        self.plan = plan
        self.first: Call | None = None
        self._names = CallNames()
        self._seen = 0

    def unit(self, module: nn.Module, forward: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        name = self._names.next(self.watches[id(module)])
        rule = self.plan.units.get(name)
        if rule is None:
            return forward(*args, **kwargs)
        call = Call.of(module, args, kwargs)
        if not rule.fits(call):
            raise Strayed
        self._seen += 1
        if name == self.plan.first:
            self.first = call.mapped(torch.clone)
        return self.computed(name, rule, forward, call)

    @abstractmethod
    def computed(self, name: str, rule: UnitRule, forward: Callable[..., Any], call: Call) -> Any:
        """What a block returns."""

    @property
    def is_complete(self) -> bool:
        """Whether every block with a rule has been called."""
        return self._seen == len(self.plan.units)


class FullPass(_Blocks):
    """Computes all tokens, and keeps keys and values and what the last block returns.

    Args:
        paths: of the blocks, by identity.
        plan: how some tokens are computed.
        state: of the guidance pass.
        tick: of the call.
    """

    def __init__(self, paths: dict[int, str], plan: TokenPlan, state: TokenState, tick: int) -> None:
        super().__init__(paths, plan)
        self.state, self.tick = state, tick

    def computed(self, name: str, rule: UnitRule, forward: Callable[..., Any], call: Call) -> Any:
        keeping = _Keeping(self, name, rule.attentions)
        with AttentionCalls(keeping):
            output = forward(*call.args, **call.kwargs)
        if name == self.plan.last and self.first is not None:
            store = self.state.others()
            layout = store.learn(self.first, output, basis="residual")
            store.push(self.tick, 0, layout.pairs(self.first.tensors, layout.split(output)))
        return output


class _Keeping:
    """Computes attentions as they are, and keeps the keys and values that a call of some tokens lacks."""

    def __init__(self, owner: FullPass, unit: str, sequences: tuple[TokenSequence | None, ...]) -> None:
        self._owner, self._unit, self._sequences, self._next = owner, unit, sequences, 0

    def attend(self, call: AttentionCall) -> Tensor:
        i = self._next
        self._next += 1
        if i >= len(self._sequences):
            raise Strayed
        sequence, state = self._sequences[i], self._owner.state
        if sequence is not None:
            if call.key.shape[-2] != sequence.length:
                raise Strayed
            state.key_values(self._unit, i).put(self._owner.tick, call.key, call.value)
            state.masks[f"{self._unit}.attention {i}"] = call.mask
        return call.compute()


class RowPass(_Blocks):
    """Computes some tokens, beside the keys and values that were kept of the others.

    Args:
        paths: of the blocks, by identity.
        plan: how some tokens are computed.
        state: of the guidance pass.
        rows: the tokens, of all samples or of each.
        at: the tick, and how what was kept is carried on: `HOLD` or `LINE`.
    """

    def __init__(
        self,
        paths: dict[int, str],
        plan: TokenPlan,
        state: TokenState,
        rows: Sequence[SampleRows],
        at: tuple[Step, Decision],
    ) -> None:
        super().__init__(paths, plan)
        self.state, self.rows = state, rows
        self.step, self.decision = at
        self._gathered = [Gathered(one.rows) for one in rows]

    def computed(self, name: str, rule: UnitRule, forward: Callable[..., Any], call: Call) -> Any:
        @cache
        def kept(i: int) -> tuple[Tensor, Tensor, Tensor | None]:
            key, value = self.state.key_values(name, i).get(self.decision, self.step)
            return key, value, self.state.masks.get(f"{name}.attention {i}")

        others = self._others(rule) if name == self.plan.last else {}
        parts = []
        for one, gathered in zip(self.rows, self._gathered, strict=True):
            args, kwargs = gathered.arguments(rule.arguments, one.of_call(call))
            own = lambda i, one=one: one.of_kept(kept(i), call.batch)
            with AttentionCalls(Completing(one.rows, rule.attentions, own)):
                output = forward(*args, **kwargs)
            onto = {i: one.of(leaf, call.batch) for i, leaf in others.items()}
            parts.append(put_back(output, rule, one.rows, onto))
        return joined(parts, self.rows)

    def _others(self, rule: UnitRule) -> dict[int, Tensor]:
        """What the last block would have returned of the other tokens, by the index of the leaf."""
        assert self.first is not None
        store = self.state.others()
        given = store.learned.given(self.first.args, self.first.kwargs)
        value = store.value(self.decision, self.step, 0, given)
        leaves = pytree.tree_leaves(store.learned.join(value, given))
        return {i: leaf for i, leaf in enumerate(leaves) if rule.outputs[i] is not None}
