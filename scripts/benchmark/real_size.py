"""Speed of denoisers at their real sizes, random weights: ours, Diffusers' hooks and cache-dit take turns in one process.

`python scripts/benchmark/real_size.py flux --out results` writes results/real_size/flux.json, row by row; `--compiled` compiles
the blocks; `--offload` measures caches and weights in host memory; `--dry-run` takes tiny denoisers on a CPU.
At its end, and with `page` in a denoiser's place, it draws what lies there as results/real_size.html.
"""

from argparse import Namespace
from pathlib import Path
from typing import Any

import torch

from diffcache.evals.harness.command_line import parser
from diffcache.evals.harness.provenance import header
from diffcache.evals.harness.results import RESULTS, result_path, write_result
from diffcache.evals.speed.real_models import RECIPES, build
from diffcache.evals.speed.real_page import write_page
from diffcache.evals.speed.real_size import Bounds, Row, measure
from diffcache.evals.speed.real_variants import Variant, offload_variants, variants

EXPERIMENT = "real_size"


def measured(name: str, args: Namespace) -> None:
    """Measures one denoiser, and writes its file after each round."""
    cuda = torch.cuda.is_available() and not args.dry_run
    device, dtype = ("cuda", torch.bfloat16) if cuda else ("cpu", torch.float32)
    model = build(name, device, dtype, tiny=args.dry_run)
    if args.compiled:
        model.net.compile_repeated_blocks()  # type: ignore[operator]
    suffix = "_offload" if args.offload else "_compiled" if args.compiled else ""
    path = result_path(EXPERIMENT, f"{name}{suffix}", args.out)
    about = {
        "model": name,
        "parameters": sum(p.numel() for p in model.net.parameters()),
        "blocks": "compiled" if args.compiled else "eager",
        "tiny": args.dry_run,
    }

    def save(rows: dict[str, Row]) -> None:
        write_result(path, header(device), {**about, "rows": rows})

    rows = measure(model, chosen(name, args), Bounds(args.ticks, args.rounds, args.seconds), save)
    for variant, row in rows.items():
        print(f"{name}{suffix:10s} {variant:48s} {line(row)}", flush=True)
    failed = [variant for variant, row in rows.items() if "error" in row]
    draw(args.out)
    if args.dry_run and failed:
        raise SystemExit(f"these failed: {', '.join(failed)}")


def draw(out: Path) -> None:
    """Draws all results in a folder."""
    print(write_page(out / EXPERIMENT, out / f"{EXPERIMENT}.html"))


def chosen(name: str, args: Namespace) -> dict[str, Variant]:
    """The variants that are asked for, and plain ones."""
    found = offload_variants() if args.offload else variants(name, compiled=args.compiled)
    return {key: variant for key, variant in found.items() if key.startswith("plain") or args.only in key}


def line(row: dict[str, Any]) -> str:
    """A row for the terminal."""
    if "error" in row:
        return row["error"]
    shown = {
        "wall_s": "s",
        "realised": "x",
        "ideal": "x ideal",
        "reused_ms": "ms reused",
        "over_ms": "ms over",
    }
    return "  ".join(f"{row[key]:.2f} {unit}" for key, unit in shown.items() if row.get(key) is not None)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("model", choices=[*RECIPES, "page"])
    options.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    options.add_argument("--ticks", type=int, default=28)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--seconds", type=float, default=200.0, help="no round begins later, but the first")
    options.add_argument("--only", default="", help="variants whose names hold this")
    options.add_argument("--compiled", action="store_true", help="compile the blocks")
    options.add_argument("--offload", action="store_true", help="features and weights in host memory")
    options.add_argument("--dry-run", action="store_true", help="a tiny denoiser on the CPU")
    args = options.parse_args()
    if args.model == "page":
        draw(args.out)
    else:
        measured(args.model, args)


if __name__ == "__main__":
    main()
