"""What holds of every denoiser, checked on tiny random instances in a hand-written loop."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from typing_extensions import Self
from zoo.denoisers import Case, loop, tensors

from diffcache import accelerate, denoising_run, report, restore
from diffcache.engine.decider import CHANGED
from diffcache.engine.whole_model import WRITES_ARGUMENTS
from diffcache.reports.records import RunRecord
from diffcache.schedulers.errors import TargetError
from diffcache.store.rings import Store

STEPS = 4
SITES = ("model", "stack", "block", "sub-layer", "depth 1")


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
        self._push: Callable[..., None] = Store.push

    def __enter__(self) -> Self:
        def hold(record: RunRecord, denoiser: str, tensors: Any, stored: int, *, on_host: bool) -> None:
            tensors = list(tensors)
            self.references += map(weakref.ref, tensors)
            self._hold(record, denoiser, tensors, stored, on_host=on_host)

        def push(store: Store, tick: int, lane: int, pairs: Any) -> None:
            self._push(store, tick, lane, pairs)
            kept = [feature.tensors for feature in store.rings[lane]]
            self.references += map(weakref.ref, pytree.tree_leaves(kept))

        RunRecord.hold = hold  # type: ignore[method-assign]
        Store.push = push  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        RunRecord.hold = self._hold  # type: ignore[method-assign]
        Store.push = self._push  # type: ignore[method-assign]

    def alive(self) -> int:
        return sum(reference() is not None for reference in self.references)


def run(case: Case, net: nn.Module, branches: int = 1) -> list[Tensor]:
    with denoising_run(net, STEPS) as steps:
        return loop(case, net, num_steps=STEPS, branches=branches, begin_step=steps.begin_step)


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def still_input_is_exact(case: Case, net: nn.Module, site: str = "model") -> bool:
    """With the inputs of the last computed tick, holding gives exactly what was computed."""
    inputs = case.inputs(torch.Generator().manual_seed(3), 1)
    with torch.no_grad():
        net(**inputs)  # AnyFlowFAR adds to a dict of the caller's the first time
    accelerate(net, "uniform", interval=2, tail_steps=0, site=site)
    with torch.no_grad(), denoising_run(net, 2) as steps:
        outputs = []
        for i in range(2):
            steps.begin_step(i)
            outputs.append(tensors(case.output(net(**inputs))))
    assert not report(net).decisions[1].all(), report(net).summary()
    return same(*outputs)


def check(case: Case, site: str) -> str:
    """ "OK", or why a case is never reused there. Raises AssertionError where something is wrong."""
    net = case.build()
    classes = [type(module) for module in net.modules()]
    plain = run(case, net, branches=2)
    try:
        accelerate(net, "uniform", interval=1, site=site)
        assert same(run(case, net, branches=2), plain), "all-compute differs"
    except TargetError as error:
        return f"no: {_why_refused(str(error))}"
    if site == "model":
        accelerate(net, "easycache", threshold=0.0)
        assert same(run(case, net, branches=2), plain), "all-compute differs"
    verdict = reuse(case, net, site, plain)
    restore(net)
    assert [type(module) for module in net.modules()] == classes, "something is left behind"
    assert same(run(case, net, branches=2), plain), "restored differs"
    return verdict


def _why_refused(message: str) -> str:
    """The reason alone: by which list of names it is refused, at attaching or at the first call, is no matter."""
    if "choose among" in message or "it has none" in message:
        return "it has none"
    return message.split(": ", 1)[1].rsplit(";", 1)[0]


def reuse(case: Case, net: nn.Module, site: str, plain: list[Tensor]) -> str:
    accelerate(net, "uniform", interval=2, site=site)
    with Counting(net) as counting, Held() as held:
        reused = run(case, net, branches=2)
    found = report(net)
    calls = [call for call in found.calls if call.site == "denoiser"]
    assert counting.calls == (sum(call.computed for call in calls) if site == "model" else len(calls)), (
        "miscounted"
    )
    assert held.alive() == 0, "a cached tensor outlives its run"
    assert all(torch.isfinite(x).all() for x in reused), "not finite"
    assert [x.shape for x in reused] == [x.shape for x in plain], "shapes differ"
    if WRITES_ARGUMENTS in found.reasons:
        assert same(reused, plain), "a forward that writes was skipped"
        return f"no: {WRITES_ARGUMENTS}"
    # AnyFlowFAR adds to a dict of the caller's
    changed = {tick for tick, *_ in found.reasons.get(CHANGED, [])}
    assert set(found.computed_ticks) == {0, 2, STEPS - 1} | changed, found.summary()
    assert len(changed) <= 1, found.summary()
    assert still_input_is_exact(case, net, site), "still input: holding differs from computing"
    return "OK"
