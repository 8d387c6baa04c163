"""What storing the cache in fewer bits costs: bytes and PSNR to the full run of each format, for some methods at half
the compute. `python scripts/measure/formats.py --json evals/results/formats.json`.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffcache.evals.harness.provenance import provenance
from diffcache.evals.harness.rendering import Rendered, render
from diffcache.evals.metrics.fidelity import psnr
from diffcache.evals.testbeds import zoo
from diffcache.recipes.taylorseer import TaylorSeerConfig
from diffcache.recipes.uniform import UniformConfig
from diffcache.store.formats import DTYPES

ORDER_1 = UniformConfig(interval=2, order=1, basis="output", warmup_steps=3, watch_bound=0.5)
METHODS = {
    "order 1, watched": ORDER_1,
    "hold": UniformConfig(interval=2, predictor="hold", warmup_steps=3),
    "order 2": ORDER_1.replace(order=2),
    "taylorseer": TaylorSeerConfig(interval=2, order=1, warmup_steps=3),
}


def median(values: Tensor) -> float:
    return round(float(values.median()), 3)


def compare(name: str, samples: int, steps: int) -> list[dict[str, Any]]:
    pipe, call = zoo.load(name), zoo.sample_call(name, 0, steps, samples)
    full = render(pipe, call).pictures
    rows = []
    for method, config in METHODS.items():
        as_computed: Rendered | None = None
        for dtype in (None, *DTYPES):
            rendered = render(pipe, call, config.replace(cache_dtype=dtype))
            as_computed = as_computed or rendered
            assert rendered.report is not None
            fidelity, unrounded = psnr(rendered.pictures, full), psnr(as_computed.pictures, full)
            row = {
                "method": method,
                "format": dtype or "as computed",
                "compute": round(rendered.report.compute_fraction, 4),
                "cache_bytes": rendered.report.cache_bytes,
                "psnr": median(fidelity),
                "lost": median(unrounded - fidelity),
                "most_lost": round(float((unrounded - fidelity).max()), 3),
            }
            print(name, row, flush=True)
            rows.append(row)
    return rows


def table(testbeds: dict[str, list[dict[str, Any]]]) -> str:
    """A row for each testbed and method as a Markdown table: KiB in three formats, and the dB that each format loses."""
    lines = [
        "| testbed | method | compute | KiB as computed | bfloat16 | int8 | PSNR | bfloat16 | float16 | int8 | float8 |",
        "|---" * 11 + "|",
    ]
    for name, rows in testbeds.items():
        for method in METHODS:
            of = {row["format"]: row for row in rows if row["method"] == method}
            first = of["as computed"]
            sizes = " | ".join(
                f"{of[key]['cache_bytes'] / 1024:,.0f}" for key in ("as computed", "bfloat16", "int8")
            )
            lost = " | ".join(f"{-of[key]['lost']:+.2f}" for key in DTYPES)
            lines.append(
                f"| {name} | {method} | {first['compute']:.0%} | {sizes} | {first['psnr']:.1f} | {lost} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--testbeds", nargs="+", default=zoo.NAMES, choices=zoo.NAMES)
    parser.add_argument("--samples", type=int, default=16, help="seeds per testbed")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    testbeds = {name: compare(name, args.samples, args.steps) for name in args.testbeds}
    print(table(testbeds))
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({**provenance("cpu"), "testbeds": testbeds}, indent=1) + "\n")


if __name__ == "__main__":
    main()
