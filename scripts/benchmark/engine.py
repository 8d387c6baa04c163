"""Measures the engine's own time: how much longer a denoiser call takes because it is accelerated.

The engine's time is that of the whole call less that of the module inside it, both read in the same call; it is
compared with the module's. Run it with nothing else on the machine: `python scripts/benchmark/engine.py`.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from diffusers import FluxTransformer2DModel, WanTransformer3DModel
from torch import Tensor, nn

from diffcache import accelerate, denoising_run, report, restore
from diffcache.engine.inner_sites import _Pass

Denoiser = tuple[nn.Module, Callable[[Tensor, float], dict[str, Any]], Tensor]


def now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def flux() -> Denoiser:
    """A Flux of some hundred million parameters, random weights, 256 image tokens."""
    net = FluxTransformer2DModel(
        in_channels=64, num_layers=3, num_single_layers=6, attention_head_dim=64, num_attention_heads=16,
        joint_attention_dim=1024, pooled_projection_dim=256, guidance_embeds=False, axes_dims_rope=(16, 24, 24),
    )  # fmt: skip
    text, pooled = torch.randn(1, 64, 1024), torch.randn(1, 256)
    image_ids, text_ids = torch.zeros(256, 3), torch.zeros(64, 3)

    def call(x: Tensor, t: float) -> dict[str, Any]:
        return {
            "hidden_states": x, "timestep": torch.tensor([t]), "encoder_hidden_states": text,
            "pooled_projections": pooled, "img_ids": image_ids, "txt_ids": text_ids, "return_dict": False,
        }  # fmt: skip

    return net, call, torch.randn(1, 256, 64)


def wan() -> Denoiser:
    """A Wan of some hundred million parameters, random weights, 512 video tokens."""
    net = WanTransformer3DModel(
        num_attention_heads=8, attention_head_dim=128, ffn_dim=4096, num_layers=6, text_dim=512, freq_dim=256
    )
    text = torch.randn(1, 64, 512)

    def call(x: Tensor, t: float) -> dict[str, Any]:
        return {
            "hidden_states": x, "timestep": torch.tensor([1000 * t]), "encoder_hidden_states": text,
            "return_dict": False,
        }  # fmt: skip

    return net, call, torch.randn(1, 16, 2, 32, 32)


def engine_share(denoiser: Denoiser, method: str, ticks: int, **options: Any) -> dict[str, Any]:
    """Medians over ticks of the engine's time on computed and on reused ticks, relative to the module's own time."""
    net, call, x = denoiser
    inside = 0.0
    plain_forward, plain_unit = net.forward, _Pass.unit

    def unit(self: _Pass, module: nn.Module, forward: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Counts what a pass does at a unit, beside the unit's own forward, as the engine's time."""
        nonlocal inside
        beneath = 0.0

        def timed_forward(*args: Any, **kwargs: Any) -> Any:
            nonlocal beneath
            start = now()
            output = forward(*args, **kwargs)
            beneath += now() - start
            return output

        start = now()
        output = plain_unit(self, module, timed_forward, args, kwargs)
        inside -= now() - start - beneath
        return output

    def timed(*args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        start = now()
        output = plain_forward(*args, **kwargs)
        inside += now() - start
        return output

    net.forward, _Pass.unit = timed, unit  # type: ignore[method-assign]
    accelerate(net, method, **options)
    computed, reused, module = [], [], []
    with torch.no_grad(), denoising_run(net, ticks, [1 - i / ticks for i in range(ticks)]) as run:
        for i in range(ticks):
            run.begin_step(i)
            inside = 0.0
            arguments = call(x, 1 - i / ticks)
            start = now()
            v = net(**arguments)[0]
            total = now() - start
            x = x - v / ticks
            (computed if inside else reused).append(total - inside)
            if inside:
                module.append(inside)
    ticks_computed = len(report(net).computed_ticks)
    restore(net)
    del net.forward
    _Pass.unit = plain_unit  # type: ignore[method-assign]
    return {
        "method": method,
        "options": options,
        "ticks_computed": f"{ticks_computed}/{ticks}",
        "module_ms": 1e3 * median(module),
        "computed_tick_overhead": median(computed) / median(module),
        "reused_tick_cost": median(reused) / median(module) if reused else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ticks", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_default_device(args.device)
    rows = []
    for name, make in (("flux", flux), ("wan", wan)):
        denoiser = make()
        denoiser[0].eval()
        millions = sum(p.numel() for p in denoiser[0].parameters()) / 1e6
        for method, options in (
            ("easycache", {"threshold": 0.0}),
            ("uniform", {"interval": 1}),
            ("uniform", {"interval": 1, "site": "sub-layer"}),
            ("uniform", {"interval": 2, "order": 1}),
            ("easycache", {"threshold": 1.0, "warmup_steps": 3}),
        ):
            row = {
                "denoiser": name,
                "parameters_M": millions,
                **engine_share(denoiser, method, args.ticks, **options),
            }
            rows.append(row)
            reused = row["reused_tick_cost"]
            print(
                f"{name:5s} {millions:5.0f} M  {method:10s} {options.get('site', 'model'):10s}{row['ticks_computed']:>6s} ticks computed"
                f"  engine on a computed tick {row['computed_tick_overhead']:.2%} of the module"
                + (f", a reused tick {reused:.2%}" if reused is not None else "")
            )
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        machine = {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "threads": torch.get_num_threads(),
        }
        args.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
