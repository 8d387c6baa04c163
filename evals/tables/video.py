"""The tables and plots of docs/measured/video.md: long rollouts by policy and with reuse, ScaleKV's bytes against PSNR, and morphs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diffcache.evals.experiments.long_video import CONTROLS, POLICIES, REAL
from diffcache.evals.harness.intervals import mean_with_interval
from diffcache.evals.harness.markdown import markdown_table
from diffcache.evals.harness.results import Result, read_result, result_path

METRICS = {
    "accuracy": "class accuracy",
    "motion": "motion per frame",
    "flicker": "temporal flickering (1 is still)",
}
DIGITS = {"accuracy": 2, "motion": 4, "flicker": 4}
COMPARED = ("accuracy", "motion")
PAIRS = (
    ("sink", "rolling"),
    ("deep-sink", "rolling"),
    ("deep-sink", "sink"),
    ("sink", "sink-not-rephased"),
    ("deep-sink", "deep-sink-not-rephased"),
    ("participative", "deep-sink"),
    ("participative", "random-choice"),
    ("participative-4", "random-choice-4"),
)
"""What is compared with what."""
BESIDE = ("everything", "uniform budgets")
"""What the other policies of next-scale models are compared with."""
BUDGETS = (12, 48)
"""Tokens of a layer that the page shows of next-scale models."""


def long_video_table() -> str:
    """A row for each policy: the videos' second half, bytes and time."""
    rows = _long_videos()
    head = ["what is kept", *METRICS.values(), "KiB", "CPU ms a frame"]
    lines = [[_said(row["policy"]), *_late(row), *_costs(row)] for row in rows.values()]
    about = rows["rolling"]
    return f"{markdown_table(head, lines)}\n\n{_about(about)}, window {about['window']}. {_INTERVALS} KiB and ms: in the second tenth, and in the last."


def long_video_pairs_table() -> str:
    """Policies beside each other, video by video."""
    rows = _long_videos()
    head = ["this", "minus that", *(METRICS[metric] for metric in COMPARED)]
    lines = [[_said(a), _said(b), *_beside(rows[a], rows[b])] for a, b in PAIRS]
    return f"{markdown_table(head, lines)}\n\nVideos of the same noise. {_BOLD}"


def rollout_reuse_table() -> str:
    """A row for each way of making a chunk."""
    result = read_result(result_path("rollout_reuse", "causal_wan"))
    rows = result["rows"]
    head = [
        "ticks of a chunk",
        "computed",
        *METRICS.values(),
        "accuracy minus every tick's",
    ]
    lines = [
        [
            row["way"],
            ", ".join(f"{row['computed'][tenth]:.0%}" for tenth in (0, -1)),
            *_late(row),
            "" if row is rows[0] else _beside(row, rows[0])[0],
        ]
        for row in rows
    ]
    about = f"{_about(result)}, {result['steps']} steps a chunk, {result['policy']}. Computed: in the first tenth, and in the last, without the clean pass"
    return f"{markdown_table(head, lines)}\n\n{about}. {_INTERVALS} {_BOLD}"


def next_scale_table() -> str:
    """A row for each policy and budget."""
    result = read_result(result_path("next_scale", "next_scale"))
    full = result["rows"][0]["bytes"]
    lines = [
        [
            row["policy"],
            str(row["budget"] or "all"),
            f"{row['bytes'] / 1024:.0f} ({row['bytes'] / full:.0%})",
            f"{row['psnr'][0]:.1f}" if "psnr" in row else "",
            "" if row["policy"] in BESIDE else _difference(row["over_uniform"], 1),
        ]
        for row in result["rows"]
        if row["budget"] in (None, *BUDGETS)
    ]
    head = [
        "what is kept",
        "tokens of a layer",
        "KiB of a picture",
        "PSNR to all, dB",
        "minus uniform",
    ]
    return f"{markdown_table(head, lines)}\n\n{result['samples']} pictures. {_INTERVALS} {_BOLD}"


def next_scale_layers_table() -> str:
    """Each layer: how selective it is, and how much harm its cutting does."""
    layers = read_result(result_path("next_scale", "next_scale"))["layers"]
    scores, harms = layers["selectivity"], layers["harm"]
    head = ["layer", *(str(i) for i in range(len(scores)))]
    lines = [
        ["selectivity, z-score", *(f"{score:+.2f}" for score in scores)],
        ["harm if cut to 6 tokens", *(f"{harm:.3f}" for harm in harms)],
    ]
    by_score, by_harm = (np.argsort(np.argsort(values)) for values in (scores, harms))
    correlation = float(np.corrcoef(by_score, by_harm)[0, 1])
    return (
        f"{markdown_table(head, lines)}\n\nDrafters by selectivity: {_listed(layers['drafters'])}; the layers that are harmed "
        f"most: {_listed(layers['most_harmed'])}. Rank correlation {correlation:+.2f}; ScaleKV counts on -1."
    )


def chimera_table() -> str:
    """A row for each way: how the second colour's share changes from picture to picture, and how uneven the steps are."""
    result = read_result(result_path("chimera", "flux"))
    ways: dict[str, list[dict[str, Any]]] = {}
    for row in result["rows"]:
        ways.setdefault(row["way"], []).append(row)
    steps = range(1, result["pictures"])
    head = ["way", *(f"step {step}" for step in steps), "largest fall", "largest step over the mean one"]
    lines = []
    for way, rows in ways.items():
        changes = np.diff([row["shares"] for row in rows]).T
        cells = [_difference(mean_with_interval(change), 3) for change in changes]
        uneven = _interval(mean_with_interval([row["largest_step"] for row in rows]), 2)
        lines.append([way, *cells, f"{max(row['largest_fall'] for row in rows):.3f}", uneven])
    alone, injected = (np.array([row["largest_step"] for row in rows]) for rows in ways.values())
    changed = max(row["changed_by_weight_0"] for row in result["rows"])
    return (
        f"{markdown_table(head, lines)}\n\n{len(alone)} morphs of {result['pictures']} pictures; the share's mean change at each step. {_INTERVALS} "
        f"{_BOLD} Largest step, injection minus slerp: {_difference(mean_with_interval(injected - alone), 2)}, smaller in "
        f"{int((injected < alone).sum())} of {len(alone)} morphs. Largest difference of a pixel between weight 0 and no observer: {changed:g}."
    )


def draw_long_video(path: Path) -> None:
    """Quality along the video, a line for each policy, with the intervals of those that are no controls."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(METRICS), figsize=(15, 4.2))
    for axis, (metric, label) in zip(axes, METRICS.items(), strict=True):
        for name, row in _long_videos().items():
            style = "k:" if name == REAL else "--" if name in CONTROLS else "-"
            values = row[metric]
            lengths = [i + 1 for i in range(len(values["mean"]))]
            (line,) = axis.plot(lengths, values["mean"], style, label=_said(name))
            if style == "-":
                axis.fill_between(lengths, values["low"], values["high"], color=line.get_color(), alpha=0.12)
        axis.set(xlabel="length, in trained lengths", ylabel=label)
        axis.grid(alpha=0.3)
    axes[-1].legend(fontsize=7)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


_INTERVALS = "In brackets 95 % intervals of the mean."
_BOLD = "Bold: zero lies outside of the interval."


def _long_videos() -> dict[str, Result]:
    """The results of long rollouts, by what is kept."""
    names = (REAL, *POLICIES)
    return {name: read_result(result_path("long_video", f"causal_wan_{name}")) for name in names}


def _said(name: str) -> str:
    words = (
        name.replace("-not-rephased", ", not re-phased")
        .replace("real-clips", "real clips")
        .replace("m-c", "m c")
        .replace("-4", ", budget 4")
    )
    return f"{words} (control)" if name in CONTROLS else words


def _about(result: Result) -> str:
    header = result["header"]
    return f"{result['samples']} videos of 90 latent frames, {header['device']}, {header['date']}; quality of their second half"


def _late(row: dict[str, Any]) -> list[str]:
    compared = [_interval(mean_with_interval(row[metric]["late"]), DIGITS[metric]) for metric in COMPARED]
    return [*compared, f"{np.mean(row['flicker']['late']):.{DIGITS['flicker']}f}"]


def _beside(row: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Differences of the second halves, by metric."""
    cells = []
    for metric in COMPARED:
        differences = np.array(row[metric]["late"]) - np.array(other[metric]["late"])
        cells.append(_difference(mean_with_interval(differences), DIGITS[metric]))
    return cells


def _interval(values: Sequence[float], digits: int) -> str:
    mean, low, high = values
    return f"{mean:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _difference(values: Sequence[float], digits: int) -> str:
    mean, low, high = values
    said = f"{mean:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"
    return f"**{said}**" if low > 0 or high < 0 else said


def _costs(row: dict[str, Any]) -> list[str]:
    """KiB and milliseconds a frame in the second tenth and in the last."""
    if "bytes" not in row:
        return ["", ""]
    sizes, times = (
        [row["bytes"][i] / 1024 for i in (1, -1)],
        [1000 * row["seconds"][i] for i in (1, -1)],
    )
    return [f"{second:.0f}, {last:.0f}" for second, last in (sizes, times)]


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
