"""What quantising and caching cost, apart and together, and what a joint calibration brings back."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from diffcache.api import accelerate, report, restore
from diffcache.config import CacheConfig
from diffcache.evals.harness.markdown import markdown_table
from diffcache.evals.harness.quality import Distance
from diffcache.host.compiled import each_uncompiled
from diffcache.host.components import denoisers_of
from diffcache.host.weight_formats import weight_bytes
from diffcache.profiling.calibrating.cachequant import calibrate_cachequant
from diffcache.profiling.calibrating.corrections import with_corrections
from diffcache.profiling.recording.calling import Call
from diffcache.profiling.recording.pictures import median_of, pictures_of, psnr, rewound
from diffcache.recipes.replay import ReplayConfig
from diffcache.recipes.uniform import UniformConfig
from diffcache.schedulers.schedule import Schedule

FULL, QUANTISED, CACHED, BOTH = "full", "quantised", "cached", "both"
CACHED_CALIBRATED = "cached, calibrated"
PLAIN_PLAN = "both, ticks planned on plain weights"
PLANNED, JOINT = "both, planned ticks", "both, planned ticks and corrections"
STORE = "int8"
CACHED_STORED, BOTH_STORED, JOINT_STORED = (f"{name}, {STORE} store" for name in (CACHED, BOTH, JOINT))


def weight_format(name: str) -> Any:
    """What `accelerate(quantize=)` takes, by name: its own names, and "int4": weights in groups of 16 with one scale each.

    int4 is here as a harsh case, and simulated: torchao keeps each of these weights in a byte.
    """
    if name != "int4":
        return name
    from torchao.quantization import IntxWeightOnlyConfig, PerGroup

    return IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(16))  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: one of the names above.
        compute: share of the full run's work.
        model_bytes: of the denoisers' weights.
        cache_bytes: the most that the cache held at once.
        psnr: dB to the full run in full precision, of each sample.
        kid: distance to real pictures; None where it was not measured.
    """

    name: str
    compute: float
    model_bytes: int
    cache_bytes: int
    psnr: list[float]
    kid: float | None

    @property
    def median(self) -> float:
        return median_of(torch.tensor(self.psnr, dtype=torch.float64))


class QuantizedComparison:
    """Renders the same calls with several weights and caches, and compares them with the plain full run.

    Args:
        pipe: a plain pipeline; it is plain again after each row.
        calls: of prompts and seeds that no calibration has seen.
        distance: of pictures to real ones; None: not measured.
    """

    def __init__(self, pipe: Any, calls: Sequence[Call], distance: Distance | None = None) -> None:
        self.pipe = pipe
        self.calls = calls
        self.distance = distance
        self.full = self._render()

    def row(self, name: str, config: CacheConfig | None = None, quantize: Any = None) -> Row:
        """One way to render; without `config` everything is computed, without `quantize` the weights are plain."""
        method = UniformConfig(interval=1) if config is None else config
        accelerate(self.pipe, method, quantize=quantize, keep_original=quantize is not None)
        try:
            pictures, found = self._render(), report(self.pipe)
            model = sum(weight_bytes(module) for module in each_uncompiled(denoisers_of(self.pipe)).values())
        finally:
            restore(self.pipe)
        return Row(
            name,
            round(found.compute_fraction, 4),
            model,
            0 if config is None else found.cache_bytes,
            [round(value, 3) for value in psnr(pictures, self.full).tolist()],
            None if self.distance is None else round(self.distance(pictures), 6),
        )

    def _render(self) -> Tensor:
        return torch.cat([pictures_of(self.pipe(**rewound(call))) for call in self.calls])


@dataclass(frozen=True)
class Setting:
    """What is compared.

    Attributes:
        quantize: as for `accelerate`.
        compute: share of ticks to compute.
        predictor: what fills in at the others, as `Schedule.predictor`.
        distance: of pictures to real ones; None: not measured.
    """

    quantize: Any
    compute: float
    predictor: Mapping[str, Any]
    distance: Distance | None = None


def compared(
    pipe: Any, calibration: Sequence[Call], held_out: Sequence[Call], setting: Setting
) -> tuple[Schedule, list[Row]]:
    """The calibrated schedule, and all rows; the pipeline is plain afterwards.

    "cached" and "both" compute evenly spread ticks. "cached, calibrated" is the same calibration on plain weights: its gain
    has nothing to do with quantisation; nor has that of its ticks on the quantised model, the control of "planned ticks". With the "int8 store" features are kept in eight bits as well.
    """
    quantize, compute, predictor = setting.quantize, setting.compute, setting.predictor
    comparison = QuantizedComparison(pipe, held_out, setting.distance)
    even = _even(predictor, compute)
    plain = calibrate_cachequant(pipe, calibration, None, compute=compute, predictor=predictor)
    joint = calibrate_cachequant(
        pipe, calibration, quantize, compute=compute, predictor=predictor, keep_original=True
    )
    restore(pipe)
    return joint, [
        comparison.row(FULL),
        comparison.row(QUANTISED, None, quantize),
        comparison.row(CACHED, even),
        comparison.row(CACHED_STORED, replace(even, cache_dtype=STORE)),
        comparison.row(CACHED_CALIBRATED, ReplayConfig(schedule=plain)),
        comparison.row(BOTH, even, quantize),
        comparison.row(BOTH_STORED, replace(even, cache_dtype=STORE), quantize),
        comparison.row(PLAIN_PLAN, ReplayConfig(schedule=with_corrections(plain, {})), quantize),
        comparison.row(PLANNED, ReplayConfig(schedule=joint, rectify=False), quantize),
        comparison.row(JOINT, ReplayConfig(schedule=joint), quantize),
        comparison.row(JOINT_STORED, ReplayConfig(schedule=joint, cache_dtype=STORE), quantize),
    ]


def _even(predictor: Mapping[str, Any], compute: float) -> UniformConfig:
    """A computed tick at each interval from the first tick on, with a predictor as a schedule describes it."""
    return UniformConfig(
        interval=max(round(1 / compute), 1),
        order=predictor.get("order", 0),
        basis=predictor["basis"],
        warmup_steps=0,
        tail_steps=0,
    )


def interaction(rows: Sequence[Row]) -> dict[str, float]:
    """How the two errors add up, and what the joint calibration gains; medians over samples, in dB.

    If the errors were independent, their mean squares would add up.

    Returns:
        "loss": how much lower than the PSNR of that sum "both" is (below zero: higher). "gain": how much higher than "both"
        the joint calibration is.
    """
    values = {row.name: torch.tensor(row.psnr, dtype=torch.float64) for row in rows}
    added = -10 * torch.log10(10 ** (-values[QUANTISED] / 10) + 10 ** (-values[CACHED] / 10))
    return {
        "loss": round(median_of(added - values[BOTH]), 3),
        "gain": round(median_of(values[JOINT] - values[BOTH]), 3),
    }


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [asdict(row) for row in rows]


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    return markdown_table(
        ["run", "compute", "model", "cache", "PSNR, median", "PSNR, mean", "KID"],
        [
            [
                row.name,
                f"{row.compute:.0%}",
                f"{row.model_bytes / 2**20:.2f} MiB",
                f"{row.cache_bytes / 2**20:.2f} MiB",
                f"{row.median:.2f}",
                f"{sum(row.psnr) / len(row.psnr):.2f}",
                "-" if row.kid is None else f"{row.kid:.5f}",
            ]
            for row in rows
        ],
    )
