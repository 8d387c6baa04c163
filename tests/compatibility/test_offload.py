"""Offloaded weights: the picture is the same, and a step that is reused moves none of them.

There is no second device here: the tests count how often each library begins to move a module's weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import dispatch_model
from accelerate.hooks import AlignDevicesHook, CpuOffload
from compatibility.levels import Cell, each_level, slow, verdict, with_cache
from diffusers.hooks.group_offloading import ModuleGroup
from support.harness import STEPS, render

GROUP = "Offloading"
CPU = torch.device("cpu")
MOVERS = ((CpuOffload, "pre_forward"), (AlignDevicesHook, "pre_forward"), (ModuleGroup, "onload_"))


def denoiser(pipe: Any) -> Any:
    return pipe.components.get("transformer") or pipe.components["unet"]


def model_offload(pipe: Any, folder: Path) -> None:
    pipe.enable_model_cpu_offload(device="cpu")


def block_groups(pipe: Any, folder: Path) -> None:
    denoiser(pipe).enable_group_offload(CPU, CPU, offload_type="block_level", num_blocks_per_group=1)


def leaf_groups(pipe: Any, folder: Path) -> None:
    denoiser(pipe).enable_group_offload(CPU, CPU, offload_type="leaf_level")


def device_map(pipe: Any, folder: Path) -> None:
    """A block lies on the disk. `enable_sequential_cpu_offload` has the same hooks; it cannot run on the device it offloads to."""
    net = denoiser(pipe)
    devices = {name: "cpu" for name, _ in net.named_children()}
    blocks = [name for name, child in net.named_children() if isinstance(child, torch.nn.ModuleList)][-1]
    del devices[blocks]
    members = range(len(getattr(net, blocks)))
    devices |= {f"{blocks}.{i}": "disk" if i == 0 else "cpu" for i in members}
    dispatch_model(net, device_map=devices, offload_dir=folder, main_device="cpu", force_hooks=True)


def layerwise_casting(pipe: Any, folder: Path) -> None:
    denoiser(pipe).enable_layerwise_casting(torch.float8_e4m3fn, torch.float32)


Way = Callable[[Any, Path], None]
MOVING: dict[str, Way] = {
    "model offload (`enable_model_cpu_offload`)": model_offload,
    "group offload, blocks": block_groups,
    "group offload, leaves": leaf_groups,
    "device map, a block on disk (Accelerate; sequential offload's hooks)": device_map,
}
WAYS = {**MOVING, "layerwise casting (float8 storage)": layerwise_casting}
NAMES = ["FluxPipeline", slow("StableDiffusionPipeline")]


@contextmanager
def moves(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Counts, by class of mover, how often weights begin to move."""
    counted = Counter[str]()

    def counting(cls: type, method: str) -> Callable[..., Any]:
        plain = getattr(cls, method)

        def counted_move(self: Any, *args: Any, **kwargs: Any) -> Any:
            counted["moves"] += getattr(self, "offload", True)
            return plain(self, *args, **kwargs)

        return counted_move

    with monkeypatch.context() as patch:
        for cls, method in MOVERS:
            patch.setattr(cls, method, counting(cls, method))
        yield counted


def moves_at_each_tick(pipe: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    ends = [0]

    def callback(pipe: Any, step: int, timestep: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        ends.append(counted["moves"])
        return kwargs

    with moves(monkeypatch) as counted:
        render(pipe, name, callback_on_step_end=callback)
    assert len(ends) == STEPS + 1
    return [after - before for before, after in pairwise(ends)]


@each_level
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_right_results_in_both_orders(name: str, way: str, level: str, tmp_path: Path, cell: Cell) -> None:
    assert verdict(name, lambda pipe: WAYS[way](pipe, tmp_path), level) == "works"
    cell(GROUP, way, level)


@each_level
@pytest.mark.parametrize("way", MOVING)
def test_a_reused_step_moves_no_weights(
    way: str, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cell: Cell
) -> None:
    """Where the whole denoiser is reused, nothing moves; where a part of it is reused, that part does not move."""

    def feature(pipe: Any) -> None:
        MOVING[way](pipe, tmp_path)

    pipe = with_cache(NAMES[0], feature, level, interval=2, cache_first=False)
    first, held, computed, *_ = moves_at_each_tick(pipe, NAMES[0], monkeypatch)
    assert computed > 0
    if level == "whole model":
        assert held == 0
    elif MOVING[way] is model_offload:  # its hook runs at each call, and finds the weights there
        assert held == computed == 1
    elif MOVING[way] is block_groups and level == "sub-layer":  # its block is called all the same
        assert held == computed
    else:
        assert held < computed <= first
    none = held == 0 or MOVING[way] is model_offload
    cell(GROUP, f"{way}: weights moved at reused steps", level, "none" if none else "those outside the site")
