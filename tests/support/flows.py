"""Toy denoisers, one for each way in which features flow through real ones, in exact arithmetic.

Every block adds `weight * t` to what it is given. Two ticks are run, with t = 1 and then t = 2, and the second one holds:
so whatever is reused adds its weight once where computing would add it twice. All numbers are small multiples of 1/32:
nothing is rounded, and the expectations of `test_data_flow.py` are sums that can be done by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """h + weight * t."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([weight]), requires_grad=False)
        self.inner = nn.Identity()  # what makes a list of them a block list: modules that are made of modules

    def forward(self, h: Tensor, t: Tensor) -> Tensor:
        return h + self.weight * t


def blocks(kind: type[nn.Module], *weights: float) -> nn.ModuleList:
    return nn.ModuleList(kind(weight) for weight in weights)


class Plain(nn.Module):
    """x -> 2x -> blocks -> + 100."""

    def __init__(self, kind: type[nn.Module] = Block, weights: Sequence[float] = (1, 2, 4)) -> None:
        super().__init__()
        self.blocks = blocks(kind, *weights)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = 2 * x
        for block in self.blocks:
            h = block(h, t)
        return h + 100


class SwappedPair(Block):
    """(hidden, text) -> (text, hidden); the last one returns None for its text."""

    last = False

    def forward(self, hidden: Tensor, text: Tensor, t: Tensor) -> tuple[Tensor | None, Tensor]:  # type: ignore[override]
        mixed = text.sum(dim=1, keepdim=True)
        return None if self.last else text + 8 * self.weight * t, hidden + self.weight * t + mixed


class SwappedStreams(nn.Module):
    """Two streams that come back in the other order, and a None in the end."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = blocks(SwappedPair, 1, 2)
        self.blocks[-1].last = True

    def forward(self, x: Tensor, text: Tensor, t: Tensor) -> Tensor:
        h = 2 * x
        for block in self.blocks:
            text, h = block(h, text, t)
        return h


class PairThenSingle(nn.Module):
    """Two streams, joined half-way into one, of which the end takes only the first's part."""

    def __init__(self) -> None:
        super().__init__()
        self.double_blocks = blocks(SwappedPair, 1)
        self.single_blocks = blocks(Block, 2, 4)

    def forward(self, x: Tensor, text: Tensor, t: Tensor) -> Tensor:
        h = 2 * x
        for block in self.double_blocks:
            text, h = block(h, text, t)
        joined = torch.cat([text, h], dim=1)
        for block in self.single_blocks:
            joined = block(joined, t)
        return joined[:, text.shape[1] :]


class Interleaved(nn.Module):
    """Blocks of two lists by turns."""

    def __init__(self) -> None:
        super().__init__()
        self.spatial_blocks = blocks(Block, 1, 2)
        self.temporal_blocks = blocks(Block, 4, 8)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        for spatial, temporal in zip(self.spatial_blocks, self.temporal_blocks, strict=True):
            x = temporal(spatial(x, t), t)
        return x


class SkipBlock(Block):
    """h + weight * t + skip."""

    def forward(self, h: Tensor, t: Tensor, skip: Tensor | None = None) -> Tensor:
        return h + self.weight * t + (0 if skip is None else skip)


class LongSkips(nn.Module):
    """Long skips held in a list, as in a UNet; the outermost one is taken before the first block."""

    def __init__(self) -> None:
        super().__init__()
        self.down_blocks = blocks(SkipBlock, 1, 2)
        self.up_blocks = blocks(SkipBlock, 4, 8)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h, skips = 2 * x, []
        for block in self.down_blocks:
            skips.append(h)
            h = block(h, t)
        for block in self.up_blocks:
            h = block(h, t, skips.pop())
        return h


class Injected(nn.Module):
    """A residual from outside is added after the first block (ControlNet)."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = blocks(Block, 1, 2)

    def forward(self, x: Tensor, t: Tensor, residual: Tensor) -> Tensor:
        h = self.blocks[0](2 * x, t) + residual
        return self.blocks[1](h, t)


class ConcatenatedText(nn.Module):
    """Text is put before the tokens ahead of each block and cut off after it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = blocks(Block, 1, 2)

    def forward(self, x: Tensor, text: Tensor, t: Tensor) -> Tensor:
        for block in self.blocks:
            joined = block(torch.cat([text, x], dim=1), t)
            text, x = joined[:, : text.shape[1]], joined[:, text.shape[1] :]
        return x


class WritesItsInput(Block):
    def forward(self, h: Tensor, t: Tensor) -> Tensor:
        return h.add_(self.weight * t)


class InPlace(Plain):
    """Blocks that write into the stream that they are given; the first one into its own memory only."""

    def __init__(self) -> None:
        super().__init__(WritesItsInput, (1, 2))


class WritesItsOutput(Block):
    """Makes a stream of its own, into which its successor writes."""

    def forward(self, h: Tensor, t: Tensor) -> Tensor:
        out = h.clone()
        return out.add_(self.weight * t)


class ThenInPlace(nn.Module):
    """What a block returned is written to before the next one takes it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = blocks(WritesItsOutput, 1, 2)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = 2 * x
        for block in self.blocks:
            h = block(h, t)
            h += x
        return h


class DictBlock(Block):
    def forward(self, state: dict[str, Tensor]) -> dict[str, Tensor]:  # type: ignore[override]
        return {"t": state["t"], "hidden": state["hidden"] + self.weight * state["t"]}


class Dicts(nn.Module):
    """Blocks that hand a dict on."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = blocks(DictBlock, 1, 2)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        state = {"hidden": 2 * x, "t": t}
        for block in self.blocks:
            state = block(state)
        return state["hidden"]


class Backwards(nn.Module):
    """A list that is run backwards, with a block that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = blocks(Block, 1, 2, 4)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        for block in reversed(self.blocks):
            x = block(x, t)
        return self.blocks[1](x, t)


class KeepsBlock(Block):
    """Writes what it sees into a buffer (a K/V cache)."""

    def __init__(self, weight: float) -> None:
        super().__init__(weight)
        self.register_buffer("seen", torch.zeros(1, 2, 4))

    def forward(self, h: Tensor, t: Tensor) -> Tensor:
        self.seen.copy_(h)
        return h + self.weight * t


class Keeps(nn.Module):
    """The second block writes a K/V cache."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(1), KeepsBlock(2), Block(4)])

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, t)
        return x


class Views(nn.Module):
    """Each block is given a view of one memory: half of the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = blocks(Block, 1, 2)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        left, right = (2 * x).chunk(2, dim=-1)
        return torch.cat([self.blocks[0](left, t), self.blocks[1](right, t)], dim=-1)


def two_ticks(net: nn.Module, begin_step: Any, **extra: Any) -> list[Tensor]:
    """x = 1, t = 1, then x = 5, t = 2."""
    outputs = []
    with torch.no_grad():
        for i, x in enumerate((1.0, 5.0)):
            begin_step(i)
            given = {name: value[i] if isinstance(value, list) else value for name, value in extra.items()}
            outputs.append(net(torch.full((1, 2, 4), x), t=torch.tensor([i + 1.0]), **given))
    return outputs
