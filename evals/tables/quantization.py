"""The table of docs/measured/quantization.md."""

from diffcache.evals.experiments.quantization import Row
from diffcache.evals.harness.markdown import markdown_table
from diffcache.evals.harness.results import Result, stored


def quantization_table() -> str:
    """A column for each stored result: the PSNR of each run, and what they have in common."""
    columns = {_title(result): _column(result) for result in stored("quantization").values()}
    names = next(iter(columns.values()))
    return markdown_table(["", *columns], ([name, *(of[name] for of in columns.values())] for name in names))


def _title(result: Result) -> str:
    settings = result["settings"]
    return f"{settings['model']}, {settings['quantize']}, {settings['predictor']}"


def _column(result: Result) -> dict[str, str]:
    """By row; what is stored has more runs, which keep less."""
    _, *runs = (Row(**row) for row in result["rows"] if "store" not in row["name"])
    of = {row.name: row for row in runs}
    interaction = result["interaction"]
    sizes = (of[name].model_bytes / 2**20 for name in ("cached", "quantised"))
    return {
        **{f"{name}, dB": f"{row.median:.2f}" for name, row in of.items()},
        "both, beside the sum of the two errors": f"{-interaction['loss']:+.2f}",
        "gain of planned ticks, median": f"{interaction['gain']:+.2f}",
        "MiB of weights, before and after": "{:.1f}, {:.1f}".format(*sizes),
        "samples": str(len(runs[0].psnr)),
    }
