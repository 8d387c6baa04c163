"""Draws docs/rows.png: edits in four steps, the tokens that are computed, and what comes out.

`python scripts/measure/rows_picture.py`
"""

from pathlib import Path

import torch

from diffcache.evals.experiments.rows_picture import draw_rows
from diffcache.evals.harness.command_line import parser

ROOT = Path(__file__).resolve().parents[2]

if __name__ == "__main__":
    parser(__doc__).parse_args()
    torch.set_num_threads(1)
    draw_rows(ROOT / "docs" / "rows.png")
