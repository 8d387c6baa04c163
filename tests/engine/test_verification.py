"""Verified ticks: the last site is computed beside its prediction, and a rejected tick is computed in full. By hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
import torch
from support import flows
from torch import Tensor, nn

from diffcache import RunReport, accelerate, denoising_run, discover, report
from diffcache.config import RunFacts
from diffcache.engine.decider import REJECTED
from diffcache.recipes.uniform import UniformConfig
from diffcache.schedulers.drafts import Drafts
from diffcache.schedulers.steps import Step

# Blocks add 1, 2 and 4 times t to h = 2x = 10, and the net adds 100. Held from t = 1 they add 1, 2 and 4, so that the last block's
# output is forecast as 17; computed behind the others it is 13 + 4t. The errors are 4/21 at t = 2, and 8/25 at t = 3.
BOUND = 0.25
OUTPUTS = [117, 117, 131, 131]
"""At t = 1 to 4: computed, held, rejected and computed, held (31 against 19 + 16: 4/35)."""


@dataclass(frozen=True, kw_only=True)
class Held(UniformConfig):
    """Holds what every block adds, and verifies the last one."""

    bound: float = BOUND
    unverified: int = 0

    def scheduler(self, run: RunFacts) -> Drafts:  # type: ignore[override]
        return Drafts(self.bound, 1.0, 0.0, self.unverified)


class Counting(flows.Plain):
    """Counts its calls and those of its blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = Counter[str]()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        self.calls["net"] += 1
        return super().forward(x, t)


def counted(net: Counting) -> None:
    for name, block in net.blocks.named_children():
        block.register_forward_pre_hook(lambda *_, name=name: net.calls.update([name]))


def run(net: nn.Module, ticks: int = 4, passes: int = 1, **options: object) -> tuple[list[float], RunReport]:
    """What the net returns at each call, and the report."""
    accelerate(net, Held(site="block", tail_steps=0, **options))  # type: ignore[arg-type]
    found = []
    with torch.no_grad(), denoising_run(net, ticks) as loop:
        for tick in range(ticks):
            loop.begin_step(tick)
            for _ in range(passes):
                output = net(torch.full((1, 2, 4), 5.0), torch.tensor([tick + 1.0]))
                found.append(float(output.unique()))
    return found, report(net)


def test_a_rejected_tick_is_computed_in_full() -> None:
    outputs, told = run(Counting().eval())
    assert outputs == OUTPUTS
    assert told.computed_ticks == [0, 2]
    assert {tick for tick, _, _ in told.reasons[REJECTED]} == {2}


def test_only_the_last_block_of_a_draft_runs_and_its_work_is_reported() -> None:
    net = Counting().eval()
    shares = {site.name: site.share for site in discover(net, torch.ones(1, 2, 4), torch.ones(1))}
    net.calls.clear()
    counted(net)
    _, told = run(net)
    # drafts at t = 2, 3, 4, and everything at t = 1 and t = 3
    assert net.calls == {"net": 5, "0": 2, "1": 2, "2": 5}
    blocks = sum(shares[f"blocks.{i}"] for i in range(3))
    work = 2 + 3 * shares["blocks.2"] + 3 * (1 - blocks)
    assert told.compute_fraction == pytest.approx(work / 4)


def test_the_other_guidance_passes_obey_and_are_not_verified() -> None:
    net = Counting().eval()
    counted(net)
    outputs, _ = run(net, passes=2)
    assert outputs == [value for value in OUTPUTS for _ in range(2)]
    # both passes: everything at t = 1 and 3; the leading one: drafts at t = 2, 3, 4, the other: reused at t = 2, 4
    assert net.calls == {"net": 9, "0": 4, "1": 4, "2": 7}


def test_ticks_may_go_unverified() -> None:
    outputs, told = run(Counting().eval(), unverified=1)
    assert outputs == OUTPUTS
    assert told.computed_ticks == [0, 2]
    outputs, told = run(Counting().eval(), unverified=2)
    assert outputs == [117, 117, 117, 138]  # 17 against 29 at t = 4
    assert told.computed_ticks == [0, 3]


def test_a_bound_of_zero_computes_everything() -> None:
    assert run(Counting().eval(), bound=0)[0] == [117, 124, 131, 138]


class Taking(flows.Plain):
    """Adds what it takes out of a list."""

    def forward(self, x: Tensor, t: Tensor, extra: list[Tensor]) -> Tensor:  # type: ignore[override]
        return super().forward(x, t) + extra.pop()


def test_a_rejected_tick_is_computed_from_what_its_first_computation_was_given() -> None:
    net, outputs = Taking().eval(), []
    accelerate(net, Held(site="block", tail_steps=0))
    with torch.no_grad(), denoising_run(net, 4) as loop:
        for tick in range(4):
            loop.begin_step(tick)
            extra = [torch.tensor(1000.0)]
            output = net(torch.full((1, 2, 4), 5.0), torch.tensor([tick + 1.0]), extra)
            outputs.append(float(output.unique()))
            assert extra == []
    assert report(net).computed_ticks == [0, 2]
    assert outputs == [1000 + value for value in OUTPUTS]


def test_an_error_that_is_no_number_is_rejected() -> None:
    drafts, step = Drafts(1.0, 1.0, 0.0, 0), Step(1, 4, "0")
    fine, bad = torch.ones(2), torch.tensor([1.0, torch.nan])
    assert not drafts.accepts(step, [bad, fine], [fine, fine])
    assert not drafts.accepts(step, [fine, bad], [fine, fine])


def test_the_bound_shrinks_over_the_run_as_published() -> None:
    flux, dit = Drafts(7.0, 0.3, 0.1, 2), Drafts(0.1, 0.01, 0.01, 2)
    assert flux.tau(Step(25, 50, "0")) == pytest.approx(3.834057903)  # 7 sqrt(0.3)
    assert dit.tau(Step(20, 50, "0")) == pytest.approx(0.0158489319)  # 0.1 * 0.01 ** 0.4
    assert dit.tau(Step(49, 50, "0")) == 0.01
    # |1 - 2| / 2 and |6 - 4| / 4: each element by itself, 0.5 in the mean
    guess, truth = torch.tensor([1.0, 6.0]), torch.tensor([2.0, -4.0]).abs()
    at = Step(0, 1, "0")
    assert Drafts(0.5, 1.0, 0.0, 0).accepts(at, [guess], [truth])
    assert not Drafts(0.499, 1.0, 0.0, 0).accepts(at, [guess], [truth])
