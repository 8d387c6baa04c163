"""Compiled code tells of a part of its operations, on memory of which it does not tell: what holds it is reused all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from unittest.mock import patch

import pytest
import torch
from support.compiling import PartlyTold
from torch import Tensor, nn

from diffcache import TargetError, accelerate, denoising_run, report
from diffcache.discovery.cuts import Placeholder

TICKS = 5


class Mix(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.out(torch.tanh(self.into(x)))
        return mixed


class Block(nn.Module):
    def __init__(self, *, writes: bool) -> None:
        super().__init__()
        self.mix, self.writes = Mix(), writes

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        x = x + self.mix(x)
        if self.writes:
            memory.copy_(x)
        return x


class Net(nn.Module):
    """Four blocks, which may write to what they are given beside the latents."""

    def __init__(self, *, writes: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block(writes=writes) for _ in range(4))
        self.memory = torch.zeros(1, 3, 8)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, self.memory)
        return x * t


def whole_blocks(net: Net) -> Iterable[nn.Module]:
    return net.blocks


def parts_of_blocks(net: Net) -> Iterable[nn.Module]:
    return (block.mix for block in net.blocks)


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def outputs(net: Net) -> Tensor:
    """Of a run on latents that change from tick to tick."""
    found, x = [], torch.randn(1, 3, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), denoising_run(net, TICKS) as run:
        for i in range(TICKS):
            run.begin_step(i)
            found.append(net(x * (1 - 0.1 * i), torch.ones(1)))
    return torch.stack(found)


@pytest.mark.parametrize("site", ["block", "stack"])
@pytest.mark.parametrize("compiled", [whole_blocks, parts_of_blocks])
def test_reuse_is_that_of_the_eager_model(compiled: Callable[[Net], Iterable[nn.Module]], site: str) -> None:
    eager = accelerate(Net().eval(), "uniform", interval=2, site=site)
    expected, net = outputs(eager), Net().eval()
    for module in compiled(net):
        module.compile(backend=PartlyTold(), fullgraph=True)
    accelerate(net, "uniform", interval=2, site=site)
    torch.testing.assert_close(outputs(net), expected)
    assert report(net).computed_ticks == report(eager).computed_ticks == [0, 2, 4]


def test_compiled_blocks_that_write_to_what_they_are_given_are_refused() -> None:
    net = Net(writes=True).eval()
    for block in net.blocks:
        block.compile(backend=PartlyTold(), fullgraph=True)
    accelerate(net, "uniform", interval=2, site="block")
    with pytest.raises(TargetError, match="writes to memory that was there before"):
        outputs(net)


def test_a_reused_tick_takes_the_memory_of_one_placeholder_for_blocks_that_are_alike() -> None:
    net = Net().eval()
    for block in net.blocks:
        block.compile(backend=PartlyTold(), fullgraph=True)
    accelerate(net, "uniform", interval=TICKS, site="stack")
    with patch.object(Placeholder, "make", autospec=True, side_effect=Placeholder.make) as make:
        outputs(net)
    assert make.call_count == TICKS - len(report(net).computed_ticks) == 3
