"""Draws docs/demo.png, the picture of the README: the same emoji in full, with a cache, and in fewer steps, with time and differences.

`python scripts/measure/picture.py` takes about a minute.
"""

from pathlib import Path

import torch

from diffcache.evals.experiments.picture import draw, rows
from diffcache.evals.harness.command_line import parser

PATH = Path(__file__).resolve().parents[2] / "docs" / "demo.png"


def main() -> None:
    parser(__doc__).parse_args()
    torch.set_num_threads(1)
    print(draw(rows(), PATH))


if __name__ == "__main__":
    main()
