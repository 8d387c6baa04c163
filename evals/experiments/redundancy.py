"""How redundant a pipeline's ticks are: how much changes from one to the next, and what holding and extrapolating cost."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diffcache.evals.harness.rendering import render
from diffcache.evals.metrics.fidelity import psnr
from diffcache.host.components import denoisers_of
from diffcache.recipes.uniform import UniformConfig

INTERVALS = (2, 3, 5)
KINDS = {"hold": 0, "linear": 1, "quadratic": 2}


@dataclass(frozen=True)
class Redundancy:
    """What one pipeline call showed.

    Attributes:
        output_change: relative L1 change of the denoiser's output, for each tick but the first.
        block_change: the same for each block's output, [block][tick].
        psnr: median PSNR in dB to the full run, by the kind of reuse and its interval ("hold every 2").
    """

    output_change: list[float]
    block_change: list[list[float]]
    psnr: dict[str, float]


def redundancy(pipe: Any, call: dict[str, Any]) -> Redundancy:
    """Renders a call in full, measuring its first guidance pass, and then with each interval and kind of reuse."""
    (denoiser,) = denoisers_of(pipe).values()
    with _measured_changes(denoiser, blocks_of(denoiser)) as changes:
        full = render(pipe, call).pictures
    quality = {}
    for interval in INTERVALS:
        for kind, order in KINDS.items():
            config = UniformConfig(interval=interval, order=order, basis="output", warmup_steps=order + 1)
            pictures = render(pipe, call, config).pictures
            quality[f"{kind} every {interval}"] = round(float(psnr(pictures, full).median()), 2)
    return Redundancy(changes[0], changes[1:], quality)


def draw(name: str, found: Redundancy, path: Path) -> Path:
    """Draws the change of the output and of the blocks over ticks, and PSNR by interval."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    curve, heat, bars = figure.subplots(1, 3)
    curve.semilogy(range(1, len(found.output_change) + 1), found.output_change, color="#1f5fa8")
    curve.set(title=f"{name}: relative L1 change of the output", xlabel="tick")
    picture = heat.imshow(torch.tensor(found.block_change).log10().numpy(), aspect="auto", cmap="viridis")
    heat.set(title="log10 change of each block's output", xlabel="tick", ylabel="block")
    figure.colorbar(picture, ax=heat)
    for i, kind in enumerate(KINDS):
        heights = [found.psnr[f"{kind} every {interval}"] for interval in INTERVALS]
        bars.bar([x + 0.27 * (i - 1) for x in range(len(INTERVALS))], heights, width=0.25, label=kind)
    bars.set_xticks(range(len(INTERVALS)), [f"every {interval}" for interval in INTERVALS])
    bars.set(title="PSNR to the full run (dB)")
    bars.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return path


def blocks_of(denoiser: nn.Module) -> list[nn.Module]:
    """The repeated blocks in order: the members with parameters of the denoiser's own module lists."""
    lists = [list(child) for child in denoiser.children() if isinstance(child, nn.ModuleList)]
    blocks = [block for members in lists for block in members if not isinstance(block, nn.Identity)]
    return [block for block in blocks if any(True for _ in block.parameters())]


@contextmanager
def _measured_changes(denoiser: nn.Module, blocks: list[nn.Module]) -> Iterator[list[list[float]]]:
    """Yields, for each module, the relative L1 changes of its first output tensor from call to call of the first guidance pass."""
    modules = [denoiser, *blocks]
    before: dict[int, Tensor] = {}
    changes: list[list[float]] = [[] for _ in modules]
    passes: list[object] = []

    def enter(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        passes.append(kwargs.get("encoder_hidden_states"))

    def hook(i: int) -> Any:
        def compare(_: nn.Module, args: Any, output: Any) -> None:
            value = _first_tensor(output)
            if passes[-1] is not passes[0]:
                return
            if i in before:
                changes[i].append(float((value - before[i]).abs().mean() / (before[i].abs().mean() + 1e-8)))
            before[i] = value.detach().clone()

        return compare

    handles = [denoiser.register_forward_pre_hook(enter, with_kwargs=True)]
    handles += [module.register_forward_hook(hook(i)) for i, module in enumerate(modules)]
    try:
        yield changes
    finally:
        for handle in handles:
            handle.remove()


def _first_tensor(output: Any) -> Tensor:
    while not isinstance(output, Tensor):
        output = next(iter(output.values())) if isinstance(output, dict) else output[0]
    return output
