"""What quantising and caching cost, apart and together, and what a joint calibration brings back."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from diffcache import accelerate, report, restore
from diffcache.config import CacheConfig
from diffcache.evals.metrics.distribution import kid
from diffcache.evals.metrics.extractors import CLASSIFIER, Extractor
from diffcache.evals.testbeds import procedural
from diffcache.host.compiled import each_uncompiled
from diffcache.host.components import denoisers_of
from diffcache.host.weight_formats import weight_bytes
from diffcache.profiling.calibrating.cachequant import calibrate_cachequant
from diffcache.profiling.recording.calling import Call
from diffcache.profiling.recording.pictures import pictures_of, psnr, rewound
from diffcache.recipes.replay import ReplayConfig
from diffcache.recipes.uniform import UniformConfig
from diffcache.schedulers.schedule import Schedule

FULL, QUANTISED, CACHED, NAIVE = "full", "quantised", "cached", "both"
PLAIN_JOINT = "cached, calibrated"
SCHEDULED, JOINT = "both, planned ticks", "both, planned ticks and corrections"
STORE = "int8"
CACHED_STORED, NAIVE_STORED, JOINT_STORED = (f"{name}, {STORE} store" for name in (CACHED, NAIVE, JOINT))

REAL_PICTURES = 1000
"""To which KID is measured."""
Distance = Callable[[Tensor], float]
"""Of pictures [N, 3, H, W] in 0..1 to some others."""


def way(name: str) -> Any:
    """What `accelerate(quantize=)` takes, by name: its own names, and "int4": weights in groups of 16 with one scale each.

    That one is here to be harsh, and simulated: torchao keeps those weights unpacked, in a byte each.
    """
    if name != "int4":
        return name
    from torchao.quantization import IntxWeightOnlyConfig, PerGroup

    return IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(16))  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: which.
        compute: share of the full run's work.
        model_bytes, cache_bytes: of the denoisers' weights, and held at most by the cache.
        psnr: dB to the full run in full precision, of each sample.
        kid: distance to real pictures, on the classifier's features; None where it was not asked for.
    """

    name: str
    compute: float
    model_bytes: int
    cache_bytes: int
    psnr: list[float]
    kid: float | None

    @property
    def median(self) -> float:
        return float(torch.tensor(self.psnr).median())


class Bench:
    """Renders the same calls under several settings and holds them against the plain full run.

    Args:
        pipe: a plain pipeline; it is plain again after each row.
        calls: of prompts and seeds that no calibration has seen.
        distance: of pictures to real ones; None leaves it out.
    """

    def __init__(self, pipe: Any, calls: Sequence[Call], distance: Distance | None = None) -> None:
        self.pipe = pipe
        self.calls = calls
        self.distance = distance
        self.full = self._render()

    def row(self, name: str, config: CacheConfig | None = None, quantize: Any = None) -> Row:
        """`config` None computes everything."""
        every = UniformConfig(interval=1) if config is None else config
        accelerate(self.pipe, every, quantize=quantize, keep_original=quantize is not None)
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


def kid_to_real() -> Distance:
    """KID of pictures to what the testbeds were trained to draw, on their classifier's features.

    Full runs of the same seeds would not do as the reference: the estimate takes two sets for independent, and falls below
    zero where each picture has its twin.
    """
    extractor = Extractor(CLASSIFIER)
    real = extractor(procedural.pictures(REAL_PICTURES, seed=1).pixels).features
    return lambda pictures: kid(extractor(pictures).features, real)


def compared(
    pipe: Any,
    calibration: Sequence[Call],
    held_out: Sequence[Call],
    quantize: Any,
    *,
    compute: float,
    predictor: Mapping[str, Any],
    distance: Distance | None = None,
) -> tuple[Schedule, list[Row]]:
    """The calibrated schedule, and all rows; the pipeline is plain afterwards.

    "cached" and "both" compute every so many ticks, evenly spread. "cached, calibrated" is the same calibration on plain weights:
    what of the gain has nothing to do with quantisation. With the "int8 store" features are kept in eight bits as well.
    """
    bench = Bench(pipe, held_out, distance)
    even = _even(predictor, compute)
    plain = calibrate_cachequant(pipe, calibration, None, compute=compute, predictor=predictor)
    joint = calibrate_cachequant(
        pipe, calibration, quantize, compute=compute, predictor=predictor, keep_original=True
    )
    restore(pipe)
    return joint, [
        bench.row(FULL),
        bench.row(QUANTISED, None, quantize),
        bench.row(CACHED, even),
        bench.row(CACHED_STORED, replace(even, cache_dtype=STORE)),
        bench.row(PLAIN_JOINT, ReplayConfig(schedule=plain)),
        bench.row(NAIVE, even, quantize),
        bench.row(NAIVE_STORED, replace(even, cache_dtype=STORE), quantize),
        bench.row(SCHEDULED, ReplayConfig(schedule=joint, rectify=False), quantize),
        bench.row(JOINT, ReplayConfig(schedule=joint), quantize),
        bench.row(JOINT_STORED, ReplayConfig(schedule=joint, cache_dtype=STORE), quantize),
    ]


def _even(predictor: Mapping[str, Any], compute: float) -> UniformConfig:
    """Every so many ticks, from the first on, with a predictor as a schedule describes it."""
    return UniformConfig(
        interval=max(round(1 / compute), 1),
        order=predictor.get("order", 0),
        basis=predictor["basis"],
        warmup_steps=0,
        tail_steps=0,
    )


def interaction(rows: Sequence[Row]) -> dict[str, float]:
    """What the two errors cost beyond their sum, and how much of it the joint calibration brings back; medians in dB.

    If they were independent, mean squared errors would add up. "loss" is how much lower than that sum's PSNR the naive
    combination lies (below zero: higher), "gain" how much higher than the naive one the joint one.
    """
    values = {row.name: torch.tensor(row.psnr, dtype=torch.float64) for row in rows}
    added = -10 * torch.log10(10 ** (-values[QUANTISED] / 10) + 10 ** (-values[CACHED] / 10))
    return {
        "loss": round(float((added - values[NAIVE]).median()), 3),
        "gain": round(float((values[JOINT] - values[NAIVE]).median()), 3),
    }


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [asdict(row) for row in rows]


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    head = (
        "| run | compute | model | cache | PSNR, median | PSNR, mean | KID |\n|---|---|---|---|---|---|---|\n"
    )
    return head + "\n".join(
        f"| {r.name} | {r.compute:.0%} | {r.model_bytes / 2**20:.2f} MiB | {r.cache_bytes / 2**20:.2f} MiB | {r.median:.2f} "
        f"| {sum(r.psnr) / len(r.psnr):.2f} | {'-' if r.kid is None else f'{r.kid:.5f}'} |"
        for r in rows
    )
