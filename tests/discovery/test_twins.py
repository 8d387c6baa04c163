"""What is found when equal blocks are followed is what is found when every block is traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from support.flows import Block, Plain, WritesItsInput
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from zoo.denoisers import CASES

from diffcache import accelerate, denoising_run
from diffcache.discovery.repeats import Unlike
from diffcache.discovery.site_finder import SiteFinder
from diffcache.discovery.twins import FollowingRecorder
from diffcache.discovery.units import (
    bare_parts_of_blocks,
    blocks_of,
    layers_of_blocks,
    sub_layers_of_blocks,
)
from diffcache.hooks.attachments import swapped
from diffcache.hooks.watcher import unit_members
from diffcache.host.call import Call

INPUTS = {"x": torch.ones(1, 2, 4), "t": torch.ones(1)}


def found(net: nn.Module, inputs: dict[str, Any], *, traces_all: bool) -> tuple[int, list[Any]]:
    """How many blocks were followed, and everything that discovery may ask of the record, memory apart."""
    bare = bare_parts_of_blocks(net)
    units = blocks_of(net) | layers_of_blocks(net) | sub_layers_of_blocks(net) | bare
    recorder = FollowingRecorder(units, Call.of(net, (), inputs).latents, traces_all=traces_all)
    with torch.no_grad(), swapped(units.values(), unit_members):
        output = recorder.record(lambda: net(**inputs))
    calls, trace = recorder.calls, recorder.trace
    told = [
        (call.name, call.kind, call.depth, call.begin, call.end, call.flops, call.evolves, call.refills)
        for call in calls
    ]
    whole = [call if call.depth == 0 else call.twin or call for call in calls]
    forms = [[each and each[1] for each in call.outputs] for call in whole]
    made = [[shape for _, shape in call.made] for call in whole]
    continues = [dict(call.continues) for call in calls]
    spans = [(call.begin, call.end) for call in calls if call.depth == 0]
    memory = [(trace.reads_old(b, b, e), trace.writes_outside(b, e)) for b, e in spans]
    sites = list(SiteFinder(net, calls, trace, output, bare).table)
    return recorder.followed, [told, forms, made, continues, memory, sites, trace.now, trace.flops]


def followed(net: nn.Module, inputs: dict[str, Any] = INPUTS) -> int:
    """How many blocks' calls are not traced; what is found is the same as if they were."""
    with torch.no_grad():
        net(**inputs)  # AnyFlowFAR adds to a dict of the caller's the first time
    number, some = found(net, inputs, traces_all=False)
    none, everything = found(net, inputs, traces_all=True)
    assert some == everything
    assert none == 0
    return number


class Chain(Plain):
    """Six blocks of one kind, one after another."""

    def __init__(self, kind: type[nn.Module] = Block) -> None:
        super().__init__(kind, [2.0**i for i in range(6)])


class ByAttribute(Block):
    """The last one does something else, and its attribute says so."""

    last = False

    def forward(self, h: Tensor, t: Tensor) -> Tensor:
        return h.add_(self.weight) if self.last else h + self.weight * t


class LooksAtContent(Block):
    """What it does depends on what is in its input."""

    def forward(self, h: Tensor, t: Tensor) -> Tensor:
        return h + self.weight * t if float(h.mean()) < 9 else h.mul_(2)


class Remembers(Block):
    """Keeps what it made where others may find it."""

    kept: ClassVar[list[Tensor]] = []

    def forward(self, h: Tensor, t: Tensor) -> Tensor:
        self.kept.append(self.weight * t)
        return h + self.kept[-1]


class Counts(Block):
    """Counts its calls in a buffer of its own."""

    def __init__(self, weight: float) -> None:
        super().__init__(weight)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, h: Tensor, t: Tensor) -> Tensor:
        self.calls.add_(1)
        return h + self.weight * t


class Borrows(Block):
    """Reads memory that is neither given to it nor its own."""

    outside: ClassVar[Tensor] = torch.ones(1)

    def forward(self, h: Tensor, t: Tensor) -> Tensor:
        return h + self.weight * t * self.outside


def of_attributes() -> Chain:
    net = Chain(ByAttribute)
    net.blocks[-1].last = True
    return net


def of_hooks() -> Chain:
    net = Chain()
    for block in net.blocks:
        block.register_forward_hook(lambda block, given, output: output + 1)
    return net


def of_shared_weights() -> Chain:
    net = Chain()
    net.blocks[4].weight = net.blocks[1].weight
    return net


def of_shared_blocks() -> Chain:
    net = Chain()
    net.blocks[5] = net.blocks[4] = net.blocks[1]
    return net


class Skipping(Chain):
    """Leaves blocks out, and calls one three times."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = 2 * x
        for i in (0, 1, 2, 2, 2, 5):
            h = self.blocks[i](h, t)
        return h


class Injected(Chain):
    """A residual is added after every second block (ControlNet), and one block's input is used in the end."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = 2 * x
        for i, block in enumerate(self.blocks):
            skip = h if i == 3 else None
            h = block(h, t)
            h = h + t if i % 2 else h
            first = skip if skip is not None else x
        return h + first


class PlainMlp(nn.Module):
    """A feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, h: Tensor) -> Tensor:
        made: Tensor = self.down(self.up(h))
        return made


class WithMlpOfTime(Block):
    """Its feed-forward is given the second argument alone."""

    def __init__(self, weight: float) -> None:
        super().__init__(weight)
        self.mlp = PlainMlp()

    def forward(self, h: Tensor, t: Tensor) -> Tensor:
        return h + self.mlp(t)


class UnseenMlp(PlainMlp):
    """No operation of it is seen, as of compiled code."""

    def forward(self, h: Tensor) -> Tensor:
        with _disable_current_modes():
            return super().forward(h)


class WithUnseenMlp(Block):
    """The second argument has no part in what it returns."""

    def __init__(self, weight: float) -> None:
        super().__init__(weight)
        self.mlp = UnseenMlp()

    def forward(self, h: Tensor, t: Tensor) -> Tensor:
        made: Tensor = self.mlp(h)
        return 2 * made


class WithState(Block):
    """Adds a buffer of its own."""

    def __init__(self, weight: float) -> None:
        super().__init__(weight)
        self.register_buffer("state", torch.zeros(1, 2, 4))

    def forward(self, h: Tensor, t: Tensor) -> Tensor:
        return h + self.state * t


class SetsStates(Chain):
    """What its blocks add evolves, but what the second one is given does not."""

    def __init__(self) -> None:
        super().__init__(WithState)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        for block in self.blocks:
            block.state.copy_(x)
        first, *others = self.blocks
        skip, h = first(2 * x, t), torch.ones(1, 2, 4)
        for block in others:
            h = block(h, t)
        return h + skip


class EvolvesLater(Chain):
    """The second argument evolves from the fourth block on."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h, context = 2 * x, torch.ones(1, 2, 4)
        for i, block in enumerate(self.blocks):
            h = block(h, context)
            context = context + h if i == 2 else context
        return h


class EvolvesFirst(Chain):
    """The first block is given nothing that evolves."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = torch.ones(1, 2, 4)
        for i, block in enumerate(self.blocks):
            h = block(h + x if i == 1 else h, t)
        return h


@pytest.mark.parametrize(
    ("net", "number"),
    [
        (EvolvesLater(Block), 5),
        (EvolvesFirst(Block), 5),
        (EvolvesLater(WithMlpOfTime), 4),
        (EvolvesLater(WithUnseenMlp), 4),
        (EvolvesFirst(Counts), 4),
        (SetsStates(), 0),
        (Chain(), 5),
        (Chain(WritesItsInput), 5),
        (Chain(Counts), 5),
        (of_attributes(), 4),
        (of_shared_weights(), 5),
        (of_shared_blocks(), 5),
        (Skipping(), 5),
        (Injected(), 5),
        (of_hooks(), 0),
        (Chain(LooksAtContent), 0),
        (Chain(Remembers), 0),
        (Chain(Borrows), 0),
    ],
    ids=[
        "evolves-later", "evolves-first", "evolves-inside", "evolves-unseen", "evolves-and-counts", "evolves-in-buffer",
        "equal", "write-input", "write-buffer", "attribute", "shared-weights", "shared-blocks", "skipped-and-repeated", "injected", "hooks", "content", "kept",
        "outside",
    ],
)  # fmt: skip
def test_equal_blocks_are_followed_and_others_are_not(net: nn.Module, number: int) -> None:
    assert followed(net) == number


DEEP = [
    ("FluxTransformer2DModel", {"num_layers": 5, "num_single_layers": 5}, 7),
    ("WanTransformer3DModel", {"num_layers": 5}, 4),
]


@pytest.mark.parametrize(("name", "more", "number"), DEEP, ids=[name for name, *_ in DEEP])
def test_a_deep_denoiser_is_followed(name: str, more: dict[str, int], number: int) -> None:
    case = CASES[name]
    assert followed(case.build(**more), case.inputs(torch.Generator().manual_seed(0), 1)) == number


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_denoiser(name: str) -> None:
    case = CASES[name]
    assert followed(case.build(), case.inputs(torch.Generator().manual_seed(0), 1)) >= 0


class Mlp(nn.Module):
    """A feed-forward. What it leaves beside its output lasts, and is no part of what it returns."""

    beside: ClassVar[Tensor | None] = None
    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, h: Tensor) -> Tensor:
        Mlp.beside = 3 * h
        return self.down(self.up(h))


class FickleMlp(Mlp):
    """The fourth call returns more."""

    def forward(self, h: Tensor) -> Tensor | tuple[Tensor, Tensor]:  # type: ignore[override]
        Mlp.calls += 1
        return (h + 1, h) if Mlp.calls == 4 else h + 1


class WithMlp(nn.Module):
    """Returns what the feed-forward has left, too."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.mlp = Mlp()

    def forward(self, h: Tensor, t: Tensor) -> tuple[Tensor, Tensor | None]:
        h, beside, Mlp.beside = self.mlp(h), Mlp.beside, None
        return h * t, beside


class WithFickleMlp(Block):
    """Returns the same, whatever its feed-forward does."""

    def __init__(self, weight: float) -> None:
        super().__init__(weight)
        self.mlp = FickleMlp()

    def forward(self, h: Tensor, t: Tensor) -> Tensor:
        made = self.mlp(h)
        return t * (made if isinstance(made, Tensor) else made[0])


class UsesTheLast(Chain):
    """What the last block leaves is used, and that of the others is not."""

    def __init__(self) -> None:
        super().__init__(WithMlp)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h, beside = 2 * x, 2 * x
        for block in self.blocks:
            h, beside = block(h, t)
        return h + beside


@pytest.mark.parametrize("make", [UsesTheLast, lambda: Chain(WithFickleMlp)], ids=["lasts", "inner-output"])
def test_what_equal_blocks_may_not_share_inside_is_noticed(make: Callable[[], nn.Module]) -> None:
    Mlp.calls = 0
    with pytest.raises(Unlike):
        found(make(), INPUTS, traces_all=False)


class Fickle(Block):
    """The fifth call of a forward returns something more, and nothing says so before."""

    calls = 0

    def forward(self, h: Tensor, t: Tensor) -> tuple[Tensor, Tensor | None]:  # type: ignore[override]
        Fickle.calls += 1
        return h + self.weight * t, t if Fickle.calls % 6 == 5 else None


class Unpacks(Chain):
    """Its blocks return a stream, and sometimes more."""

    def __init__(self) -> None:
        super().__init__(Fickle)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        Fickle.calls = 0
        h = 2 * x
        for block in self.blocks:
            h, more = block(h, t)
            h = h if more is None else h + more
        return h


def test_a_block_that_does_otherwise_than_those_before_it_is_noticed_and_everything_is_traced() -> None:
    net = Unpacks()
    with pytest.raises(Unlike):
        found(net, INPUTS, traces_all=False)
    plain = net(**INPUTS)
    accelerate(net.eval(), "uniform", interval=2, tail_steps=0, site="block")
    with torch.no_grad(), denoising_run(net, 2) as run:
        run.begin_step(0)
        assert torch.equal(net(**INPUTS), plain)
        run.begin_step(1)
        assert torch.equal(net(**INPUTS), plain)
