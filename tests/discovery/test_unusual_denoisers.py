"""Denoisers that do what no published one does: what is reused is right, or it is refused with a reason."""

from __future__ import annotations

import weakref
from typing import Any, ClassVar

import pytest
import torch
from support import flows
from support.flows import Block, blocks
from torch import Tensor, nn
from zoo.denoisers import CASES

from diffcache import accelerate, denoising_run, report
from diffcache.engine.inner_sites import STRAYED
from diffcache.schedulers.errors import TargetError
from diffcache.store.streams import Layout

X = torch.ones(1, 2, 4)


def outputs(net: nn.Module, site: str, times: tuple[float, ...] = (1, 1, 1, 1)) -> list[Tensor]:
    """Of every tick of a loop whose latent stands still, with every second tick reused."""
    accelerate(net.eval(), "uniform", interval=2, tail_steps=0, site=site)
    with torch.no_grad(), denoising_run(net, len(times)) as run:
        found = []
        for i, t in enumerate(times):
            run.begin_step(i)
            found.append(net(X.clone(), torch.tensor([t])))
    return found


def holds_exactly(net: nn.Module, site: str) -> bool:
    """Holding gives what was computed, and something was held."""
    first, *others = outputs(net, site)
    return all(torch.equal(first, other) for other in others) and report(net).computed_ticks == [0, 2]


class Refilling(Block):
    """Hands its result on in the dict that it is given."""

    def forward(self, state: dict[str, Tensor]) -> dict[str, Tensor]:  # type: ignore[override]
        state["h"] = state["h"] + self.weight * state["t"]
        return state


class Refilled(nn.Module):
    """Ignores what its blocks return, because they write it into the dict."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = blocks(Refilling, 1, 2, 4)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        state = {"h": 2 * x, "t": t}
        for block in self.blocks:
            block(state)
        return state["h"]


class Popping(Block):
    """Takes its long skip off the list that it is given."""

    def forward(self, h: Tensor, t: Tensor, skips: list[Tensor]) -> Tensor:  # type: ignore[override]
        return h + self.weight * t + skips.pop()


class Popped(nn.Module):
    """Long skips in a list that the up blocks shorten."""

    def __init__(self) -> None:
        super().__init__()
        self.down_blocks = blocks(Block, 1, 2)
        self.up_blocks = blocks(Popping, 4, 8)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h: Tensor = 2 * x
        skips: list[Tensor] = []
        for block in self.down_blocks:
            skips.append(h)
            h = block(h, t)
        for block in self.up_blocks:
            h = block(h, t, skips)
        return h


@pytest.mark.parametrize(
    ("kind", "site"),
    [(Refilled, "stack"), (Refilled, "block"), (Refilled, "blocks.1"), (Popped, "up_blocks.0")],
    ids=lambda v: getattr(v, "__name__", v),
)
def test_a_block_that_refills_its_arguments_is_not_skipped(kind: type[nn.Module], site: str) -> None:
    with pytest.raises(TargetError, match="list or dict"):
        outputs(kind(), site)


def test_what_lies_beside_a_block_that_refills_can_be_cached() -> None:
    assert holds_exactly(Popped(), "block")
    assert holds_exactly(Popped(), "depth 1")


class Inert(Block):
    """Returns the tensor that it is given."""

    def forward(self, h: Tensor, t: Tensor) -> Tensor:
        return h


class Features(nn.Module):
    """Adds up what its blocks returned."""

    def __init__(self, *kinds: type[Block]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(kind(2**i) for i, kind in enumerate(kinds))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h: Tensor = 2 * x
        features = []
        for block in self.blocks:
            h = block(h, t)
            features.append(h)
        return sum(features[1:], features[0])


class FirstAndLast(Features):
    """Of what its blocks returned, only that of the first one and of the last one is used."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = first = self.blocks[0](2 * x, t)
        for block in self.blocks[1:]:
            h = block(h, t)
        return h + first


@pytest.mark.parametrize(
    ("last", "site"),
    [(Inert, "blocks.0..blocks.1"), (flows.WritesItsInput, "stack")],
    ids=["handed-on", "written-to"],
)
def test_memory_that_two_blocks_of_a_span_return_is_not_replaced_by_the_last(
    last: type[Block], site: str
) -> None:
    with pytest.raises(TargetError, match="skip connection"):
        outputs(FirstAndLast(Block, last), site)


def test_the_stack_ends_with_the_last_block_that_makes_something() -> None:
    assert holds_exactly(FirstAndLast(Block, Inert, Inert), "stack")
    assert holds_exactly(FirstAndLast(Block, Inert, Inert), "stack[0..]")


def test_a_block_that_returns_its_input_can_be_cached() -> None:
    assert holds_exactly(Features(Block, Block, Inert), "block")


def test_a_skipped_block_hands_on_what_it_handed_on() -> None:
    """The first block's output is the stream from before the stack, and is used after it."""
    assert holds_exactly(FirstAndLast(Inert, Block, Block), "stack")


class LeavesEarly(nn.Module):
    """Late ticks leave the last block out."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = blocks(Block, 1, 2, 4)

    def order(self, t: Tensor) -> list[int]:
        return [0, 1, 2] if t < 2 else [0, 1]

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        for i in self.order(t):
            x = self.blocks[i](x, t)
        return x


class Repeats(LeavesEarly):
    """Late ticks call a block twice."""

    def order(self, t: Tensor) -> list[int]:
        return [0, 1, 2] if t < 2 else [0, 1, 1, 2]


class Reorders(LeavesEarly):
    """Late ticks end with another block."""

    def order(self, t: Tensor) -> list[int]:
        return [0, 1, 2] if t < 2 else [0, 2, 1]


@pytest.mark.parametrize("kind", [LeavesEarly, Repeats, Reorders])
def test_a_forward_that_takes_another_way_is_computed_and_the_report_says_why(
    kind: type[LeavesEarly],
) -> None:
    times = (1.0, 2.0, 2.0, 2.0)
    plain = [1 + sum(float(t) * 2**i for i in kind().order(torch.tensor(t))) for t in times]
    net = kind()
    found = outputs(net, "stack", times)
    assert [float(x.mean()) for x in found] == plain
    assert [tick for tick, *_ in report(net).reasons[STRAYED]] == [1]
    assert report(net).computed_ticks == [0, 1, 2]


class Unsteady(Block):
    """Returns another form at late ticks."""

    def forward(self, h: Tensor, t: Tensor) -> tuple[Tensor, Tensor | None]:  # type: ignore[override]
        return h + self.weight * t, torch.ones(3) if t < 2 else None


class Changing(nn.Module):
    """Adds up whatever its blocks return."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = blocks(Unsteady, 1, 2, 4)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        for block in self.blocks:
            x, extra = block(x, t)
            x = x if extra is None else x + extra.sum()
        return x


def test_a_block_that_returns_another_form_is_learned_anew() -> None:
    first, held, third, also_held = outputs(Changing(), "block", (1.0, 1.0, 2.0, 2.0))
    assert torch.equal(first, held)
    assert torch.equal(third, also_held)
    assert float(third.mean()) == 1 + 2 * 7


def test_a_block_that_returns_the_same_form_is_learned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    learned = []

    def learn(*args: Any, **kwargs: Any) -> Layout:
        learned.append(args)
        return Layout(*args, **kwargs)

    monkeypatch.setattr("diffcache.store.rings.Layout", learn)
    outputs(flows.Plain(), "block", (1.0, 1.0))
    once = len(learned)
    learned.clear()
    outputs(flows.Plain(), "block", (1.0,) * 8)
    assert len(learned) == once > 0


class Counting(Block):
    """Counts how many blocks' inputs are alive."""

    inputs: ClassVar[list[weakref.ref[Tensor]]] = []
    alive: ClassVar[list[int]] = []

    def forward(self, h: Tensor, t: Tensor) -> Tensor:
        self.inputs.append(weakref.ref(h))
        self.alive.append(sum(reference() is not None for reference in self.inputs))
        return h + self.weight * t


def test_a_pass_keeps_no_more_inputs_alive_than_one_site_needs() -> None:
    net = flows.Plain()
    net.blocks = blocks(Counting, *range(1, 9))
    Counting.inputs.clear()
    Counting.alive.clear()
    outputs(net, "block", (1.0,) * 3)
    assert (
        max(Counting.alive[-8:]) <= 3
    )  # the block's own, the variable of the denoiser's forward, and the site's


class Indexing(Block):
    """Returns indices into a table beside its stream."""

    def forward(self, h: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return h + self.weight * t, torch.tensor([1, 0])


class Indexed(nn.Module):
    """Looks up, between its blocks, what they told."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = blocks(Indexing, 1, 2, 4)
        self.table = nn.Parameter(torch.arange(8.0).reshape(2, 4), requires_grad=False)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        for block in self.blocks:
            x, indices = block(x, t)
            x = x + self.table[indices]
        return x


def test_indices_that_a_skipped_block_stands_in_for_are_in_range() -> None:
    assert holds_exactly(Indexed(), "stack")


def test_a_site_inside_another_is_refused() -> None:
    case = CASES["WanTransformer3DModel"]
    net, inputs = case.build(), case.inputs(torch.Generator().manual_seed(0), 1)
    accelerate(net, "profilingdit", blocks=("blocks.1", "blocks.1.attn1"))
    with torch.no_grad(), denoising_run(net, 2) as run:
        run.begin_step(0)
        with pytest.raises(TargetError, match="overlap"):
            net(**inputs)


class Heavy(LeavesEarly):
    """Its blocks work, so that work can be counted; late ticks end with another block."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        for i in [0, 1, 2, 3] if t < 2 else [0, 1, 3, 2]:
            x = self.blocks[i](x)
        return x


def test_what_was_computed_in_vain_is_counted() -> None:
    net = accelerate(Heavy().eval(), "uniform", interval=2, tail_steps=0, site="stack")
    with torch.no_grad(), denoising_run(net, 2) as run:
        for i in range(2):
            run.begin_step(i)
            net(torch.ones(1, 3, 8), torch.tensor(1.0 + i))
    assert report(net).reasons[STRAYED]
    # Of the second tick two blocks had been skipped before the forward went another way; two were computed, and then all four.
    assert report(net).compute_fraction == pytest.approx((4 + 2 + 4) / 8)


class Looking(nn.Module):
    """From some tick on it adds to its result what its first block returned, through an operation on it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = blocks(Block, 1, 2, 4)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        inner = []
        for block in self.blocks:
            x = block(x, t)
            inner.append(x)
        return x + (2 * inner[0]).flip(1) if t < 0.5 else x


@pytest.mark.parametrize("site", ["stack", "block"])
def test_a_forward_that_begins_to_use_what_is_inside_a_site_is_computed_there(site: str) -> None:
    times = (1.0, 1.0, 0.4, 0.3, 0.2, 0.1)
    with torch.no_grad():
        truth = [Looking()(X, torch.tensor([t])) for t in times]
    net = Looking()
    found = outputs(net, site, times)
    if site == "stack":
        assert torch.equal(found[1], found[0])
        assert all(torch.equal(a, b) for a, b in zip(found[2:], truth[2:], strict=True))
        assert [tick for tick, *_ in report(net).reasons[STRAYED]] == [3, 5]
        assert report(net).summary()
    assert all(type(output) is Tensor for output in found)


class Curved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(x) + t)


class Thinning(nn.Module):
    """Late in a run it calls every second block only."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Curved() for _ in range(4))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        for block in self.blocks[:: 1 if t > 0.5 else 2]:
            x = block(x, t)
        return x


def test_a_call_that_is_made_again_is_measured_once() -> None:
    """A run of the late blocks alone teaches their order, so the first call of the next run is made twice."""
    net = accelerate(Thinning().eval(), "seacache", threshold=0.3)
    noise = torch.randn(2, 3, 8)

    def drawn(times: list[float]) -> Tensor:
        x = noise
        with torch.no_grad(), denoising_run(net, len(times), sigmas=times) as run:
            for i, t in enumerate(times):
                run.begin_step(i)
                x = x - net(x, torch.tensor([t])) / 12
        return x

    times = [1 - i / 12 for i in range(12)]
    first = drawn(times)
    told = report(net).computed_ticks
    drawn([0.4] * 4)
    assert torch.equal(drawn(times), first)
    assert report(net).computed_ticks == told


def test_a_site_that_is_entered_behind_its_beginning_is_computed_in_the_report_too() -> None:
    net, x = accelerate(Thinning().eval(), "fbcache", threshold=0.3), torch.randn(2, 3, 8)
    with torch.no_grad(), denoising_run(net, 12) as run:
        for i in range(12):
            run.begin_step(i)
            x = x - net(x, torch.tensor([1 - i / 12])) / 12
    assert {*range(6, 12)} <= {*report(net).computed_ticks}
    assert {tick for tick, *_ in report(net).reasons[STRAYED]} == {*range(6, 12)}
