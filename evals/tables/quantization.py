"""The tables of docs/measured/quantization.md."""

from collections.abc import Sequence

from diffcache.evals.experiments.quantization import Row
from diffcache.evals.harness.markdown import markdown_table
from diffcache.evals.harness.results import Result, stored


def quantization_tables() -> str:
    """A section for each stored result."""
    return "\n\n".join(map(_section, stored("quantization").values()))


def _section(result: Result) -> str:
    settings, interaction = result["settings"], result["interaction"]
    rows = [Row(**row) for row in result["rows"] if "store" not in row["name"]]
    return (
        f"### {settings['model']}, {settings['quantize']}, {settings['predictor']}, {len(rows[0].psnr)} samples\n\n"
        f"{_short(rows)}\n\n"
        f"Both together are {_beside(interaction['loss'])} if the two errors were independent and added up. "
        f"Planned ticks gain {interaction['gain']:.2f} dB, in the median over samples."
    )


def _beside(loss: float) -> str:
    return f"{abs(loss):.2f} dB {'lower' if loss > 0 else 'higher'} than"


def _short(rows: Sequence[Row]) -> str:
    """A row for each run: its work, its bytes and its median PSNR; what is stored has more."""
    lines = (
        [row.name, f"{row.compute:.0%}", f"{row.model_bytes / 2**20:.1f}", f"{row.median:.2f}"]
        for row in rows[1:]
    )
    return markdown_table(["run", "compute", "MiB of the model", "PSNR, median"], lines)
