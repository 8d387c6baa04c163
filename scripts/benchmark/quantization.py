"""Measures latency and memory of a Flux of random weights: plain, int8 and float8, each with and without a cache.

It has the size of FLUX.1 unless told otherwise:
`python scripts/benchmark/quantization.py --device cuda --compile --json evals/results/quantization_speed/compiled.json`
"""

from dataclasses import asdict
from pathlib import Path

from diffcache.evals.harness.command_line import parser
from diffcache.evals.harness.provenance import header
from diffcache.evals.harness.results import write_result
from diffcache.evals.speed.quantized import BLOCKS, HEADS, WEIGHTS, Workload, measured


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--device", default="cpu")
    options.add_argument("--heads", type=int, default=HEADS)
    options.add_argument(
        "--blocks", type=int, default=BLOCKS, help="double-stream ones, and twice as many single-stream"
    )
    options.add_argument("--tokens", type=int, default=4096, help="of the picture, 16 x 16 pixels each")
    options.add_argument("--ticks", type=int, default=20)
    options.add_argument("--interval", type=int, default=2, help="of the cache")
    options.add_argument("--rounds", type=int, default=3, help="after one that warms up")
    options.add_argument("--weights", nargs="+", default=list(WEIGHTS), choices=WEIGHTS)
    options.add_argument("--compile", dest="compiled", action="store_true", help="the blocks")
    options.add_argument("--json", type=Path, help="file for the rows")
    given = vars(options.parse_args())
    weights, path = given.pop("weights"), given.pop("json")
    load = Workload(**given)
    rows = []
    for name in weights:
        for row in measured(name, load):
            rows.append(row)
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
        if path:
            write_result(path, header(load.device), {"workload": asdict(load), "rows": rows})


if __name__ == "__main__":
    main()
