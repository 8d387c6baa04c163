"""The site that is a guidance pass: the unconditional one is rebuilt from the conditional one of the same tick."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from diffcache.config import GUIDANCE, GuidanceRule
from diffcache.engine.branch import Branch
from diffcache.engine.execution import Carried, Invocation
from diffcache.host.call import Call
from diffcache.host.conventions import CONDITIONAL, UNCONDITIONAL
from diffcache.host.rows import conditional_first
from diffcache.reports.records import Done, RunRecord
from diffcache.schedulers.guards import NOTHING_STORED, Guards, History
from diffcache.schedulers.steps import Decision, Step, Verdict

OTHER_ORDER = "the unconditional pass comes first: there is nothing to rebuild it from"
OTHER_SHAPES = (
    "the unconditional pass returns other shapes than the conditional one: it cannot be rebuilt from it"
)


@dataclass
class Difference:
    """What the unconditional pass said beyond the conditional one, at the last tick at which both were computed.

    Attributes:
        tick: that one.
        tensors: the difference.
        emptied: how often either pass had been emptied by then. Once more, and there is another prompt.
        low, high: weights of its frequencies.
    """

    tick: int
    tensors: list[Tensor]
    emptied: tuple[int, int]
    low: float = 1.0
    high: float = 1.0


@dataclass
class RebuiltPass:
    """Decides and rebuilds, for one denoiser over one run.

    Attributes:
        name: the denoiser's, in the report.
        rule: when and how.
        guards: the method's.
        record: where every call is written down.
    """

    name: str
    rule: GuidanceRule
    guards: Guards
    record: RunRecord
    _led: tuple[int, Branch, Any] | None = None
    _differences: WeakKeyDictionary[Branch, Difference] = field(default_factory=WeakKeyDictionary)

    def lead(self, tick: int, branch: Branch, output: Any) -> None:
        """A pass has given its output, from which the next one of this tick may be rebuilt."""
        self._led = tick, branch, output

    def follow(self, step: Step, branch: Branch, call: Call, compute: Callable[[], Carried]) -> Carried:
        """Another pass: its own output, or what it is expected to be."""
        assert self._led is not None
        _, leader, led = self._led
        step = step._replace(site=GUIDANCE, kind=GUIDANCE)
        verdict = self._verdict(step, leader, branch)
        self._led = None
        if verdict.decision.computes:
            output = yield from compute()
            own, others = _tensors(output), _tensors(led)
            if [tensor.shape for tensor in own] == [tensor.shape for tensor in others]:
                tensors = [a.float() - b.float() for a, b in zip(own, others, strict=True)]
                self._differences[branch] = Difference(step.tick, tensors, (leader.emptied, branch.emptied))
            else:
                self._differences.pop(branch, None)
                verdict = Verdict(Decision.COMPUTE, OTHER_SHAPES)
            self.record.add(self.name, call.batch, [Done(step, [verdict], share=0.0)])
            return output
        self.record.add(self.name, call.batch, [Done(step, [verdict])])
        return self._rebuilt(self._differences[branch], step, led)

    def leads(self, tick: int) -> bool:
        """Whether the leading pass has been seen at this tick."""
        return self._led is not None and self._led[0] == tick

    def tensors(self) -> Iterator[Tensor]:
        """What is kept of the passes."""
        for difference in self._differences.values():
            yield from difference.tensors
        if self._led is not None:
            yield from _tensors(self._led[2])

    def clear(self) -> None:
        self._led = None
        self._differences.clear()

    def _verdict(self, step: Step, leader: Branch, branch: Branch) -> Verdict:
        last = self._differences.get(branch)
        reason = self.guards.forces_compute(step, History(last.tick if last else None, None))
        if UNCONDITIONAL in (leader.context or "") and reason is None:
            reason = OTHER_ORDER
        if reason is None and (last is None or last.emptied != (leader.emptied, branch.emptied)):
            reason = NOTHING_STORED
        return (
            Verdict(Decision.COMPUTE, reason) if reason else Verdict(self.rule.scheduler.decide(step, None))
        )

    def _rebuilt(self, difference: Difference, step: Step, led: Any) -> Any:
        """The conditional output plus the difference, whose low and high frequencies grow with every reuse."""
        difference.low *= self.rule.low.at(step.time)
        difference.high *= self.rule.high.at(step.time)
        leaves, spec = pytree.tree_flatten(led)
        pending = iter(difference.tensors)
        rebuilt = [
            (leaf.float() + weighted(next(pending), difference.low, difference.high)).to(leaf.dtype)
            if isinstance(leaf, Tensor)
            else leaf
            for leaf in leaves
        ]
        return pytree.tree_unflatten(rebuilt, spec)


def one_by_one(asked: Invocation, carry_out: Callable[[Invocation], Carried]) -> Carried:
    """Takes a batch of both guidance passes apart, so that one can be left out; the conditional one runs first.

    Args:
        asked: the call of both.
        carry_out: carries out the call of one of them.
    """
    call, outputs = asked.call, {}
    half = call.batch // 2
    leads = conditional_first(asked.module)
    for context, second in ((CONDITIONAL, not leads), (UNCONDITIONAL, leads)):
        args, kwargs = call.rows(list(range(half, call.batch) if second else range(half)))
        part = replace(asked, call=Call(call.signature, args, kwargs), context=context)
        outputs[second] = asked.lasting((yield from carry_out(part)))
    return pytree.tree_map(
        lambda a, b: torch.cat([a, b]) if isinstance(a, Tensor) else a, outputs[False], outputs[True]
    )


def weighted(x: Tensor, low: float, high: float) -> Tensor:
    """x with its low frequencies (inside a fifth of the shorter side) and the others weighted.

    Args:
        x: [..., height, width] with four dimensions or more. What has fewer has no picture to take frequencies of,
            and is weighted with `low`.
    """
    if x.ndim < 4 or low == high:
        return low * x
    height, width = x.shape[-2:]
    y = torch.fft.fftfreq(height, 1 / height, device=x.device).round()
    z = torch.fft.fftfreq(width, 1 / width, device=x.device).round()
    inside = y[:, None] ** 2 + z[None, :] ** 2 <= (min(height, width) // 5) ** 2
    weights = torch.where(inside, low, high)
    filtered: Tensor = torch.fft.ifft2(torch.fft.fft2(x) * weights)
    return filtered.real


def _tensors(output: Any) -> Sequence[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
