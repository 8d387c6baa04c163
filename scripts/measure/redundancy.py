"""Draws the redundancy card of each testbed: `python scripts/measure/redundancy.py --testbeds dit flux`."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from diffcache.evals.harness.redundancy import card, draw
from diffcache.evals.testbeds import zoo


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--testbeds", nargs="+", default=list(zoo.NAMES), choices=zoo.NAMES)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--out", type=Path, default=Path("evals/results/redundancy"))
    args = parser.parse_args()
    for name in args.testbeds:
        found = card(zoo.load(name), zoo.sample_call(name, 0, args.steps, args.samples))
        draw(name, found, args.out / f"{name}.png")
        figures = {key: value for key, value in asdict(found).items() if key != "block_change"}
        (args.out / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n")
        print(name, found.psnr)


if __name__ == "__main__":
    main()
