"""The tables of docs/quantization.md."""

from diffcache.evals.experiments.quantization import Row, table
from diffcache.evals.harness.results import Result, stored


def quantization_tables() -> str:
    """A section for each stored result."""
    return "\n\n".join(map(_section, stored("quantization").values()))


def _section(result: Result) -> str:
    settings, interaction = result["settings"], result["interaction"]
    rows = [Row(**row) for row in result["rows"]]
    return (
        f"### {settings['model']}, {settings['quantize']}, {settings['predictor']}, {len(rows[0].psnr)} samples\n\n"
        f"{table(rows)}\n\n"
        f"Beyond the sum: {interaction['loss']:.2f} dB. Brought back: {interaction['gain']:.2f} dB."
    )
