"""Every way in which features flow through a denoiser: what a reused tick gives, worked out by hand; or why it is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import flows
from torch import Tensor, nn

from diffcache import accelerate, denoising_run, discover, report, restore
from diffcache.schedulers.errors import TargetError

TEXT = torch.ones(1, 3, 4)


def reused(net: nn.Module, site: str, **extra: Any) -> Tensor:
    """The output of the second tick, in which `site` holds."""
    plain = flows.two_ticks(net, lambda i: None, **extra)
    accelerate(net, "uniform", interval=2, tail_steps=0, site=site)
    with denoising_run(net, 2) as run:
        first, second = flows.two_ticks(net, run.begin_step, **extra)
    assert torch.equal(first, plain[0])
    assert report(net).computed_ticks == [0]
    restore(net)
    assert all(map(torch.equal, flows.two_ticks(net, lambda i: None, **extra), plain))
    return second


EXPECTED: list[tuple[type[nn.Module], str, dict[str, Any], float]] = [
    # 2x + what is held (weights once) + what is computed (weights twice) + the rest, at x = 5
    (flows.Plain, "stack", {}, 10 + 7 + 100),
    (flows.Plain, "block", {}, 10 + 7 + 100),
    (flows.Plain, "blocks.1", {}, 10 + 2 * 1 + 2 + 2 * 4 + 100),
    (flows.Plain, "stack[1..]", {}, 10 + 2 * 1 + (2 + 4) + 100),
    (flows.Plain, "stack[0..1]", {}, 10 + (1 + 2) + 2 * 4 + 100),
    (flows.Plain, "blocks.0..blocks.1", {}, 10 + (1 + 2) + 2 * 4 + 100),
    # hidden gets 1 + sum(text) = 3 from block 0, and 2 + sum(text + 8) = 27 from block 1, at t = 1
    (flows.SwappedStreams, "stack", {"text": TEXT}, 10 + (1 + 3) + (2 + 27)),
    (flows.SwappedStreams, "block", {"text": TEXT}, 10 + (1 + 3) + (2 + 27)),
    # block 0 computed at t = 2: hidden + 2 + 3, text + 16; block 1 is held
    (flows.SwappedStreams, "blocks.1", {"text": TEXT}, 10 + (2 + 3) + (2 + 27)),
    # block 0 is held (text + 8), block 1 computed at t = 2: 4 + sum(text + 8)
    (flows.SwappedStreams, "blocks.0", {"text": TEXT}, 10 + (1 + 3) + (4 + 27)),
    # the joined stream has no input of its shape before the stack: its end is held as it was at x = 1
    (flows.PairThenSingle, "stack", {"text": TEXT}, 2 + (1 + 3) + (2 + 4)),
    (flows.PairThenSingle, "block", {"text": TEXT}, 10 + (1 + 3) + (2 + 4)),
    (flows.PairThenSingle, "single_blocks.0..single_blocks.1", {"text": TEXT}, 10 + (2 + 3) + (2 + 4)),
    (
        flows.PairThenSingle,
        "double_blocks.0..single_blocks.0",
        {"text": TEXT},
        2 + (1 + 3) + 2 + 2 * 4,
    ),
    (flows.Interleaved, "stack", {}, 5 + 15),
    (flows.Interleaved, "temporal_blocks.0", {}, 5 + 2 * 1 + 4 + 2 * 2 + 2 * 8),
    (flows.Interleaved, "stack[1..2]", {}, 5 + 2 * 1 + (4 + 2) + 2 * 8),
    # 2x + 1 + 2, + 4 + skip (2x + 1), + 8 + skip (2x): at x = 1 the skips add 3 and 2, at x = 5 10 + t and 10
    (flows.LongSkips, "stack", {}, 10 + (1 + 2 + 4 + 8) + (3 + 2)),
    # inside the outermost skip, blocks 0 to 2 are one deep part, whose output is held as it was at x = 1
    (flows.LongSkips, "depth 1", {}, (2 + 1 + 2 + 4 + 3) + 2 * 8 + 10),
    (flows.LongSkips, "depth 2", {}, (2 + 1 + 2) + (2 * 4 + 12) + (2 * 8 + 10)),
    # the injected residual is frozen with the stack, and is not with single blocks
    (flows.Injected, "stack", {"residual": [torch.tensor(32.0), torch.tensor(64.0)]}, 10 + 1 + 32 + 2),
    (flows.Injected, "block", {"residual": [torch.tensor(32.0), torch.tensor(64.0)]}, 10 + 1 + 64 + 2),
    (flows.ConcatenatedText, "stack", {"text": TEXT}, 5 + 3),
    (flows.ConcatenatedText, "blocks.0", {"text": TEXT}, 5 + 1 + 2 * 2),
    (flows.ThenInPlace, "block", {}, 10 + (1 + 5) + (2 + 5)),
    (flows.Dicts, "stack", {}, 10 + 3),
    (flows.Dicts, "blocks.1", {}, 10 + 2 * 1 + 2),
    (flows.Backwards, "stack", {}, 5 + (4 + 2 + 1) + 2),
    (flows.Backwards, "blocks.1", {}, 5 + 2 * 4 + 2 + 2 * 1 + 2 * 2),
    (flows.Backwards, "blocks.1#1", {}, 5 + 2 * (4 + 2 + 1) + 2),
    (flows.Keeps, "blocks.2", {}, 5 + 2 * (1 + 2) + 4),
    (flows.Views, "blocks.1", {}, float("nan")),
]


@pytest.mark.parametrize(
    ("kind", "site", "extra", "expected"),
    EXPECTED,
    ids=lambda v: getattr(v, "__name__", str(v)) if not isinstance(v, dict) else "",
)
def test_what_is_held_adds_what_it_added(
    kind: type[nn.Module], site: str, extra: dict[str, Any], expected: float
) -> None:
    second = reused(kind().eval(), site, **extra)
    if kind is flows.Views:
        assert second[..., :2].eq(10 + 2).all()
        assert second[..., 2:].eq(10 + 2).all()
    else:
        assert second.eq(expected).all(), second


REFUSED = [
    (flows.InPlace, "block", "writes to memory that was there before"),
    (flows.Keeps, "stack", "K/V cache"),
    (flows.Keeps, "blocks.1", "K/V cache"),
    (flows.LongSkips, "down_blocks.0..down_blocks.1", "skip connection"),
    (flows.Views, "stack", "skip connection"),
]


@pytest.mark.parametrize(("kind", "site", "reason"), REFUSED, ids=lambda v: getattr(v, "__name__", str(v)))
def test_what_cannot_be_skipped_is_refused_with_its_reason(
    kind: type[nn.Module], site: str, reason: str
) -> None:
    net = kind().eval()
    accelerate(net, "uniform", interval=2, tail_steps=0, site=site)
    with pytest.raises(TargetError, match=reason), denoising_run(net, 2) as run:
        flows.two_ticks(net, run.begin_step)
    restore(net)
    assert len(flows.two_ticks(net, lambda i: None)) == 2


def test_the_table_says_the_same() -> None:
    table = discover(flows.Keeps().eval(), torch.ones(1, 2, 4), t=torch.ones(1))
    assert repr({"net": table}) == f"{{'net': {table}}}"
    assert [site.name for site in table if site.reason is None] == ["model", "blocks.0", "blocks.2"]
    table = discover(flows.LongSkips().eval(), torch.ones(1, 2, 4), t=torch.ones(1))
    assert table["depth 1"].units == ("down_blocks.0", "down_blocks.1", "up_blocks.0")
    assert table["depth 2"].units == ("down_blocks.1",)


def test_the_table_counts_the_parameters_of_each_site_shared_ones_once() -> None:
    net = flows.Plain().eval()
    net.blocks[1].weight = net.blocks[0].weight
    table = discover(net, torch.ones(1, 2, 4), t=torch.ones(1))
    for site in table:
        units = [net.get_submodule(unit) for unit in site.units] or [net]
        assert site.parameters == sum(p.numel() for p in nn.ModuleList(units).parameters()), site.name


def test_sites_that_overlap_or_do_not_exist_are_refused() -> None:
    net = flows.Plain().eval()
    for site, reason in {
        "stack[3..7]": "its stack has blocks 0 to 2",
        "blocks.2..blocks.1": "has none",
    }.items():
        accelerate(net, "uniform", site=site)
        with pytest.raises(TargetError, match=reason), denoising_run(net, 2) as run:
            flows.two_ticks(net, run.begin_step)
    with pytest.raises(TargetError, match="no site 'attention': choose among model, stack, block"):
        accelerate(net, "uniform", site="attention")
