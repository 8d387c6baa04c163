"""What a first call teaches is kept with the denoiser: later passes and runs need no trace, and do the same."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import pytest
import torch
from diffusers.models.transformers.transformer_flux import FluxAttnProcessor
from support.flows import Block, blocks
from torch import Tensor, nn
from zoo.denoisers import CASES

from diffcache import accelerate, denoising_run, report, restore
from diffcache.discovery.unit_recorder import UnitRecorder
from diffcache.engine.inner_sites import STRAYED
from diffcache.engine.learned import FORMS_KEPT

X = torch.ones(1, 2, 4)
METHODS = [
    ("fbcache", {"threshold": 1e9, "warmup_steps": 0}),
    ("teacache", {"threshold": 1e9, "warmup_steps": 0, "coefficients": (1.0, 0.0)}),
    ("taylorseer", {"interval": 2, "order": 1, "warmup_steps": 0}),
    ("uniform", {"interval": 2, "site": "sub-layer"}),
    ("uniform", {"interval": 2, "site": "stack"}),
]


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[UnitRecorder]:
    """The forwards that are traced from now on."""
    found: list[UnitRecorder] = []
    record = UnitRecorder.record

    def counted(self: UnitRecorder, forward: Any) -> Any:
        found.append(self)
        return record(self, forward)

    monkeypatch.setattr(UnitRecorder, "record", counted)
    return found


class Net(nn.Module):
    """Adds up what its blocks add, in an order that may be changed."""

    def __init__(self, *weights: float) -> None:
        super().__init__()
        self.blocks = blocks(Block, *weights or (1, 2, 4))
        self.uses_first = False
        self.order = (0, 1, 2)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h, inner = x, []
        for i in self.order:
            h = self.blocks[i](h, t)
            inner.append(h)
        return h + inner[0] if self.uses_first else h


def run(net: nn.Module, passes: int = 1, ticks: int = 4, x: Tensor = X) -> list[Tensor]:
    """What the denoiser returns in a run, pass by pass and tick by tick."""
    found = []
    with torch.no_grad(), denoising_run(net, ticks) as loop:
        for i in range(ticks):
            loop.begin_step(i)
            found += [net(x * (1 + i + n), torch.ones(1)) for n in range(passes)]
    return found


@pytest.mark.parametrize(("method", "options"), METHODS, ids=[f"{m}-{o.get('site', '')}" for m, o in METHODS])
def test_a_form_is_traced_once_for_all_passes_and_runs_and_later_runs_do_the_same(
    method: str, options: dict[str, Any], traced: list[UnitRecorder]
) -> None:
    case = CASES["FluxTransformer2DModel"]
    net = accelerate(case.build().eval(), method, **options)
    runs, decisions = [], []
    for _ in range(3):
        found = []
        with torch.no_grad(), denoising_run(net, 4) as loop:
            for i in range(4):
                loop.begin_step(i)
                for seed in (i, 7):
                    found.append(net(**case.inputs(torch.Generator().manual_seed(seed), 1))[0])
        runs.append(torch.stack(found))
        decisions.append(report(net).decisions)
    assert len(traced) == 1
    assert report(net).compute_fraction < 1
    assert torch.equal(runs[0], runs[1])
    assert torch.equal(runs[0], runs[2])
    assert decisions[0].equal(decisions[1])
    assert decisions[0].equal(decisions[2])


def test_another_method_another_form_and_autocast_are_traced_by_themselves(
    traced: list[UnitRecorder],
) -> None:
    net = Net().eval()
    for site in ("stack", "block", "stack", "block"):
        run(accelerate(net, "uniform", interval=2, site=site))
    assert len(traced) == 2
    run(net, x=X.repeat(2, 1, 1))
    run(net, x=X.double())
    assert len(traced) == 4
    with torch.autocast("cpu", torch.bfloat16):
        run(net)
    assert len(traced) == 5
    run(net)
    assert len(traced) == 5


def test_a_run_that_goes_another_way_from_its_first_tick_on_is_right_and_says_so(
    traced: list[UnitRecorder],
) -> None:
    net = accelerate(Net().eval(), "uniform", interval=2, tail_steps=0, site="stack")
    run(net)
    for order in [(0, 1), (0, 2, 1), (0, 1, 1, 2)]:
        net.order = order
        plain = [x.clone() for x in run(restore(copy.deepcopy(net)))]
        found = run(net)
        assert torch.equal(found[0], plain[0])
        assert torch.equal(found[2], plain[2])
        assert [tick for tick, *_ in report(net).reasons[STRAYED]] == [0]
        assert run(net)[0].equal(plain[0])
        assert STRAYED not in report(net).reasons
    assert len(traced) == 4


class Reads(Block):
    """A block of another class, which adds more."""

    def forward(self, h: Tensor, t: Tensor) -> Tensor:
        return h + 100 * self.weight


def test_a_denoiser_that_was_built_otherwise_since_is_traced_anew(traced: list[UnitRecorder]) -> None:
    net = accelerate(Net().eval(), "uniform", interval=2, site="stack")
    run(net)
    run(net)
    assert len(traced) == 1
    net.blocks[1] = Reads(2.0)
    accelerate(net, "uniform", interval=2, site="stack")
    assert float(run(net)[0].mean()) == 1 + 1 + 200 + 4
    assert len(traced) == 2
    net.uses_first = True
    with pytest.raises(Exception, match="skip connection"):
        run(net)
    assert len(traced) == 3


def test_attention_processors_that_are_set_after_the_loop_began_are_traced_anew(
    traced: list[UnitRecorder],
) -> None:
    """Pipelines with perturbed-attention guidance do so."""

    class Other(FluxAttnProcessor): ...

    case = CASES["FluxTransformer2DModel"]
    net = accelerate(case.build().eval(), "fbcache", threshold=0.0)
    for processor in (None, None, Other(), Other(), None):
        with torch.no_grad(), denoising_run(net, 1) as loop:
            before = net.attn_processors
            if processor is not None:
                net.set_attn_processor(processor)
            loop.begin_step(0)
            net(**case.inputs(torch.Generator().manual_seed(0), 1))
            net.set_attn_processor(before)
    assert len(traced) == 2


def test_what_was_learned_goes_with_the_denoiser_and_is_no_part_of_copies(
    traced: list[UnitRecorder],
) -> None:
    net = accelerate(Net().eval(), "uniform", interval=2, site="stack")
    size = len(pickle.dumps(net))
    run(net)
    assert len(pickle.dumps(net)) == size
    twin = accelerate(copy.deepcopy(net), "uniform", interval=2, site="stack")
    run(twin)
    assert len(traced) == 2
    gone = weakref.ref(restore(net))
    traced.clear()
    del net
    gc.collect()
    assert gone() is None


def test_no_tensor_outlives_the_run_and_forms_are_bounded(traced: list[UnitRecorder]) -> None:
    net = accelerate(Net().eval(), "uniform", interval=2, site="block")
    run(net)
    traced.clear()
    gc.collect()
    before = sum(isinstance(one, Tensor) for one in gc.get_objects())
    for tokens in range(3, 3 + FORMS_KEPT):
        run(net, x=torch.ones(1, tokens, 4))
    assert len(traced) == FORMS_KEPT
    run(net)
    assert len(traced) == FORMS_KEPT + 1  # the oldest was dropped
    traced.clear()
    gc.collect()
    assert sum(isinstance(one, Tensor) for one in gc.get_objects()) == before
