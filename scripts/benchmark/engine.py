"""Measures the engine's own time: how much longer a denoiser call takes because it is accelerated.

Run it with nothing else on the machine: `python scripts/benchmark/engine.py --json evals/results/engine/cpu.json`.
"""

from pathlib import Path

import torch

from diffcache.evals.harness.command_line import parser
from diffcache.evals.harness.provenance import header
from diffcache.evals.harness.results import write_result
from diffcache.evals.speed.engine import DENOISERS, METHODS, engine_times


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--ticks", type=int, default=20)
    options.add_argument("--device", default="cpu")
    options.add_argument("--json", type=Path, help="file for the figures")
    args = options.parse_args()
    torch.manual_seed(0)
    torch.set_default_device(args.device)
    rows = []
    for name, build in DENOISERS.items():
        denoiser = build()
        millions = sum(p.numel() for p in denoiser.net.parameters()) / 1e6
        for method, settings in METHODS:
            row = engine_times(denoiser, method, args.ticks, **settings)
            rows.append({"denoiser": name, "parameters_M": millions, **row})
            reused = row["reused_tick_cost"]
            print(
                f"{name:5s} {millions:5.0f} M  {method:10s} {settings.get('site', 'model'):10s}"
                f"{row['ticks_computed']:>6s} ticks computed"
                f"  engine on a computed tick {row['computed_tick_overhead']:.2%} of the module"
                + (f", a reused tick {reused:.2%}" if reused is not None else "")
            )
    if args.json:
        write_result(args.json, header(args.device), {"rows": rows})


if __name__ == "__main__":
    main()
