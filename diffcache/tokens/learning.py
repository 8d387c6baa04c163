"""Learning how a denoiser computes some of its tokens, proved by the same-tick identity.

One call is computed in full. Each block is then called again with some of the tokens of the same call, beside the keys and values of
the others, and must return the same. At last all blocks together are called so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from diffcache.discovery.storage_trace import Trace
from diffcache.discovery.unit_recorder import CallNames
from diffcache.hooks.attention_calls import AttentionCall, AttentionCalls
from diffcache.hooks.watcher import watched
from diffcache.host.call import Call
from diffcache.tokens.attention import Completing, Listening, Strayed
from diffcache.tokens.closeness import error_of
from diffcache.tokens.layout import Rows, TokenLayout
from diffcache.tokens.positions import Entry, block_paths, entry_of
from diffcache.tokens.probe import Computed, Probed, is_apart, largest_error, probed, tolerance
from diffcache.tokens.rules import Gathered, Stream, UnitRule, put_back

PROBED = 8
"""One token in so many is probed, and at least one."""

NOT_TOGETHER = (
    "its blocks together return something else on some of the tokens ({error:.1e} of the largest entry)"
)


@dataclass(frozen=True)
class TokenPlan:
    """How a denoiser computes some of its tokens.

    Attributes:
        entry: where the latents enter the blocks.
        units: the rules of the blocks that compute some tokens, by name, in order; the others compute all.
        first, last: names of the first and last of them.
        share: of all blocks that the latents reach.
        error: largest error of the identity, a fraction of the largest entry; 0.0 to the bit.
        reasons: why other blocks compute all tokens, by name.
        apart: samples of a batch can be computed apart.
    """

    entry: Entry
    units: Mapping[str, UnitRule]
    first: str
    last: str
    share: float
    error: float
    reasons: Mapping[str, str]
    apart: bool = False


@dataclass(frozen=True)
class Learned:
    """What a learning call gave.

    Attributes:
        output: the denoiser's.
        plan: None if the denoiser is refused.
        reason: why it is refused.
    """

    output: Any
    plan: TokenPlan | None
    reason: str | None = None


def probe_rows(count: int, device: torch.device) -> Rows:
    """The tokens that are probed: one in eight, spread evenly."""
    every = max(min(PROBED, count // 2), 2)
    return Rows(torch.arange(every // 2, count, every, device=device))


def learn(denoiser: nn.Module, forward: Callable[..., Any], call: Call) -> Learned:
    """Computes a call in full, and finds how some of its tokens can be computed.

    Args:
        denoiser: whose blocks' classes are swapped.
        forward: its plain forward.
        call: its arguments.
    """
    entry = entry_of(denoiser, forward, call)
    if isinstance(entry, str):
        return Learned(forward(*call.args, **call.kwargs), None, entry)
    rows = probe_rows(entry.layout.count, call.latents[0].device)
    trace = Trace(call.latents)
    probing = _Probing(block_paths(denoiser), entry, rows, trace, apart=call.batch > 1)
    with trace, watched(probing):
        output = forward(*call.args, **call.kwargs)
    segment = probing.longest()
    if not segment:
        return Learned(output, None, next(iter(probing.reasons.values())))
    units = {name: probing.found[name] for name in segment}
    plan = TokenPlan(
        entry,
        {name: found.rule for name, found in units.items() if found.rule is not None},
        segment[0],
        segment[-1],
        len(segment) / len(probing.order),
        max(found.error for found in units.values()),
        probing.reasons,
        apart=probing.apart,
    )
    error = _together(probing, plan, call, forward, output)
    if error is None or error > tolerance(probing.dtype or torch.float32):
        reason = NOT_TOGETHER.format(error=float("inf") if error is None else error)
        return Learned(output, None, reason)
    return Learned(output, replace(plan, error=max(plan.error, error)))


class _Probing:
    """Computes a forward in full, and probes each block from the first that the latents reach.

    Attributes:
        order: names of the blocks from there on.
        found: what the probe of each said.
        reasons: why some of them have no rule.
        attentions: of the blocks that have one.
        outputs: of those that may end the range.
        apart: samples can be computed apart, as far as is known.
    """

    def __init__(self, paths: dict[int, str], entry: Entry, rows: Rows, trace: Trace, *, apart: bool) -> None:
        self.watches = paths
        self.rows = rows
        self.order: list[str] = []
        self.found: dict[str, Probed] = {}
        self.reasons: dict[str, str] = {}
        self.attentions: dict[str, list[AttentionCall]] = {}
        self.outputs: dict[str, list[Any]] = {}
        self.dtype: torch.dtype | None = None
        self.apart = apart
        self._entry = entry
        self._trace = trace
        self._layout: TokenLayout = entry.layout
        self._before: list[Stream] = []
        self._names = CallNames()

    def unit(self, module: nn.Module, forward: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        name = self._names.next(self.watches[id(module)])
        if not self.order and name != self._entry.unit:
            return forward(*args, **kwargs)
        given = Call.of(module, args, kwargs)
        if not self._trace.evolves(given.tensors.values()):
            return forward(*args, **kwargs)  # text alone: it is computed at every call
        self.order.append(name)
        with self._trace.untraced():
            listening, call = Listening(), given.mapped(torch.clone)
        with AttentionCalls(listening):
            output = forward(*args, **kwargs)
        with self._trace.untraced():
            self._probe(name, forward, Computed(call, output, listening.calls))
        return output

    def _probe(self, name: str, forward: Any, computed: Computed) -> None:
        found = self.found[name] = probed(forward, computed, self._layout, self.rows, self._before)
        if found.rule is None:
            self.reasons[name] = found.reason or ""
            return
        self._layout = found.layout
        self.apart = self.apart and is_apart(forward, computed, found.rule, self.rows)
        returned = zip(pytree.tree_leaves(computed.output), found.rule.outputs, strict=True)
        self._before = [(leaf, cut) for leaf, cut in returned if cut is not None]
        self.attentions[name] = [*computed.attentions]
        leaves = pytree.tree_leaves(computed.output)
        self.outputs[name] = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.dtype = next((leaf.dtype for leaf in self.outputs[name] if isinstance(leaf, Tensor)), None)

    def longest(self) -> list[str]:
        """The longest run of blocks that can compute some of the tokens."""
        best: list[str] = []
        here: list[str] = []
        for name in self.order:
            here = [*here, name] if self.found[name].rule is not None else []
            best = here if len(here) > len(best) else best
        return best


class _Together:
    """Calls the blocks of the plan with the tokens that were probed.

    Attributes:
        error: of what the last of them returns; None before its call.
    """

    def __init__(self, plan: TokenPlan, probing: _Probing) -> None:
        self.watches = probing.watches
        self.error: float | None = None
        self._plan, self._probing, self._rows = plan, probing, probing.rows
        self._gathered = Gathered(probing.rows)
        self._names = CallNames()

    def unit(self, module: nn.Module, forward: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        name = self._names.next(self.watches[id(module)])
        rule = self._plan.units.get(name)
        if rule is None:
            return forward(*args, **kwargs)
        full = self._probing.attentions[name]
        kept = lambda i: (full[i].key.clone(), full[i].value.clone(), full[i].mask)
        args, kwargs = self._gathered.arguments(rule.arguments, Call.of(module, args, kwargs))
        with AttentionCalls(Completing(self._rows, rule.attentions, kept)):
            output = forward(*args, **kwargs)
        onto: dict[int, Tensor] = {}
        if name == self._plan.last:
            full_outputs = self._probing.outputs[name]
            self.error = largest_error(full_outputs, pytree.tree_leaves(output), rule.outputs, self._rows)
            onto = {i: leaf.clone() for i, leaf in enumerate(full_outputs) if isinstance(leaf, Tensor)}
        return put_back(output, rule, self._rows, onto)


def _together(
    probing: _Probing, plan: TokenPlan, call: Call, forward: Callable[..., Any], output: Any
) -> float | None:
    """By how much the last block's output, and the denoiser's, differ where some tokens are computed; None if the forward went another way.

    Args:
        probing: of the call in full.
        plan: how the blocks compute some tokens.
        call: of the denoiser.
        forward: its plain forward.
        output: what it returned in full.
    """
    together = _Together(plan, probing)
    try:
        with watched(together):
            some = forward(*call.args, **call.kwargs)
    except Strayed:
        return None
    if together.error is None:
        return None
    pairs = zip(pytree.tree_leaves(output), pytree.tree_leaves(some), strict=True)
    both = [(a, b) for a, b in pairs if isinstance(a, Tensor) and isinstance(b, Tensor)]
    return max([together.error, *(error_of(a, b) for a, b in both)])
