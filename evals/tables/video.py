"""The tables and plots of docs/measured/video.md: long rollouts by policy, and ScaleKV's bytes against PSNR."""

from pathlib import Path
from typing import Any

from diffcache.evals.harness.markdown import markdown_table
from diffcache.evals.harness.results import read_result, result_path

BUDGETS = (None, 12, 48)
"""Tokens of a layer that the page shows of next-scale models."""

METRICS = {
    "accuracy": "class accuracy",
    "motion": "motion per frame",
    "flicker": "temporal flickering (1 is still)",
}


def long_video_table() -> str:
    """A row for each policy: first and last tenth of the video."""
    result = read_result(result_path("long_video", "causal_wan"))
    head = [
        "what is kept",
        "accuracy: first",
        "last",
        "motion: first",
        "last",
        "flickering: last",
        "KiB after 90 frames",
    ]
    lines = [[row["policy"], *_ends(row), *_costs(row)] for row in result["rows"]]
    header = result["header"]
    return (
        f"{markdown_table(head, lines)}\n\n{result['samples']} videos of {result['frames']} latent frames, window "
        f"{result['window']}, {header['device']}, {header['date']}. First and last are tenths of the video."
    )


def next_scale_table() -> str:
    """A row for each policy and budget."""
    path = result_path("next_scale", "next_scale")
    if not path.exists():
        return (
            "Not measured yet: `python scripts/train_testbeds.py next_scale --minutes 3`, then "
            "`python scripts/measure/next_scale.py`."
        )
    result = read_result(path)
    full = result["rows"][0]["bytes"]
    lines = [
        [
            row["policy"],
            "all" if row["budget"] is None else str(row["budget"]),
            f"{row['bytes'] / 1024:.0f}",
            f"{row['bytes'] / full:.0%}",
            "" if row["psnr"] is None else f"{row['psnr']:.1f}",
            f"{row['accuracy']:.2f}",
        ]
        for row in result["rows"]
        if row["budget"] in BUDGETS
    ]
    head = [
        "what is kept",
        "tokens of a layer",
        "KiB of a picture",
        "of all",
        "PSNR to all, dB",
        "class accuracy",
    ]
    return f"{markdown_table(head, lines)}\n\n{result['samples']} pictures, medians. Drafters: layers {_listed(result['drafters'])}."


def draw_long_video(path: Path) -> None:
    """Quality along the video, a line for each policy."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    result = read_result(result_path("long_video", "causal_wan"))
    figure, axes = pyplot.subplots(1, len(METRICS), figsize=(15, 4.2))
    for axis, (metric, label) in zip(axes, METRICS.items(), strict=True):
        for row in result["rows"]:
            control = "control" in row["policy"]
            style = "k:" if row["policy"] == "real clips" else "--" if control else "-"
            lengths = [i + 1 for i in range(len(row[metric]))]
            axis.plot(lengths, row[metric], style, label=row["policy"])
        axis.set(xlabel="length, in trained lengths", ylabel=label)
        axis.grid(alpha=0.3)
    axes[-1].legend(fontsize=7)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _ends(row: dict[str, Any]) -> list[str]:
    cells = []
    for metric, digits in (("accuracy", 2), ("motion", 3), ("flicker", 3)):
        values = row[metric]
        shown = values[-1:] if metric == "flicker" else (values[0], values[-1])
        cells += [f"{value:.{digits}f}" for value in shown]
    return cells


def _costs(row: dict[str, Any]) -> list[str]:
    return [f"{row['bytes'][-1] / 1024:.0f}" if "bytes" in row else ""]


def _listed(numbers: list[int]) -> str:
    return " and ".join(map(str, numbers))
