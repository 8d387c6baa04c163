"""What holds of every denoiser, checked on tiny random instances in a hand-written loop."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self
from zoo.denoisers import Case, loop, tensors

from diffcache import accelerate, denoising_run, report, restore
from diffcache.engine import WRITES_ARGUMENTS
from diffcache.planner import CHANGED
from diffcache.records import RunRecord

STEPS = 6


class Counting:
    """Counts the calls that really reach a module's forward."""

    def __init__(self, net: nn.Module) -> None:
        self.net, self.calls, self.forward = net, 0, net.forward

    def __enter__(self) -> Self:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return self.forward(*args, **kwargs)

        self.net.forward = counted  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        del self.net.forward


class Held:
    """Remembers, weakly, every tensor that the cache has ever held."""

    def __init__(self) -> None:
        self.references: list[weakref.ref[Tensor]] = []
        self._hold: Callable[..., None] = RunRecord.hold

    def __enter__(self) -> Self:
        def hold(record: RunRecord, held: Any) -> None:
            held = list(held)
            self.references += [weakref.ref(tensor) for tensor in held]
            self._hold(record, held)

        RunRecord.hold = hold  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        RunRecord.hold = self._hold  # type: ignore[method-assign]

    def alive(self) -> int:
        return sum(reference() is not None for reference in self.references)


def run(case: Case, net: nn.Module, branches: int = 1) -> list[Tensor]:
    with denoising_run(net, STEPS) as steps:
        return loop(case, net, num_steps=STEPS, branches=branches, begin_step=steps.begin_step)


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def still_input_is_exact(case: Case, net: nn.Module) -> bool:
    """With the inputs of the last computed tick, holding gives exactly what was computed."""
    inputs = case.inputs(torch.Generator().manual_seed(3), 1)
    with torch.no_grad():
        net(**inputs)  # AnyFlowFAR adds to a dict of the caller's the first time
    accelerate(net, "uniform", interval=2, tail_steps=0)
    with torch.no_grad(), denoising_run(net, 2) as steps:
        outputs = []
        for i in range(2):
            steps.begin_step(i)
            outputs.append(tensors(case.output(net(**inputs))))
    assert report(net).computed_ticks == [0]
    return same(*outputs)


def whole_model(case: Case) -> str:
    """ "OK", or why the whole denoiser of a case is never reused. Raises AssertionError where something is wrong."""
    net = case.build()
    cls = type(net)
    plain = run(case, net, branches=2)
    accelerate(net, "easycache", threshold=0.0)
    assert same(run(case, net, branches=2), plain), "all-compute differs"
    accelerate(net, "uniform", interval=2)
    with Counting(net) as counting, Held() as held:
        reused = run(case, net, branches=2)
    found = report(net)
    assert counting.calls == sum(call.computed for call in found.calls), "the report miscounts"
    assert held.alive() == 0, "a cached tensor outlives its run"
    assert all(torch.isfinite(x).all() for x in reused), "not finite"
    assert [x.shape for x in reused] == [x.shape for x in plain], "shapes differ"
    if WRITES_ARGUMENTS in found.reasons:
        verdict = WRITES_ARGUMENTS
        assert same(reused, plain), "a forward that writes was skipped"
    else:
        verdict = "OK"
        changed = {
            tick for tick, *_ in found.reasons.get(CHANGED, [])
        }  # AnyFlowFAR adds to a dict of the caller's
        assert {*found.computed_ticks} == {0, 2, 4, 5} | changed, found.summary()
        assert len(changed) <= 1, found.summary()
        assert still_input_is_exact(case, net), "still input: holding differs from computing"
    restore(net)
    assert type(net) is cls
    assert same(run(case, net, branches=2), plain), "restored differs"
    return verdict
