"""A recording: how the features of a pipeline change over its runs, and what they cost; kept as files."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from diffcache.schedulers.errors import ScheduleError
from diffcache.schedulers.schedule import GUIDANCE_SCALE, Model
from diffcache.schedulers.whole_files import written_whole

FORMAT = 4
"""Version of the files. Files of another version are refused."""

JSON_NAME, TENSORS_NAME = "recording.json", "recording-{}.safetensors"
STATISTICS = ("drift", "ratio", "cosine", "seconds")
"""The tensors of a `Curve`."""


@dataclass
class Curve:
    """Statistics of one site in one branch: means over runs.

    Attributes:
        drift: fp64 [ticks, ticks]: how far tick s is from an earlier tick g, by the metric of the recording
            (`recorder.Metric`; "l1": mean|f_s - f_g| / mean|f_s|); NaN where not compared.
        ratio: fp64 [ticks]: norm over each token's channels over that norm at the tick before, mean over tokens; 1 at tick 0.
        cosine: fp64 [ticks]: cosine similarity to the tick before; 1 at tick 0.
        seconds: fp64 [ticks]: wall time; NaN where not measured. Tick 1 takes longer, since operations are counted there.
        flops: floating-point operations of matrix products, convolutions and attention; 0 where they were not counted.
        runs: how many runs were recorded.
    """

    drift: Tensor
    ratio: Tensor
    cosine: Tensor
    seconds: Tensor
    flops: int = 0
    runs: int = 0

    @classmethod
    def empty(cls, ticks: int) -> "Curve":
        drift = torch.full((ticks, ticks), torch.nan, dtype=torch.float64)
        ones = torch.ones(ticks, dtype=torch.float64)
        return cls(drift, ones, ones.clone(), ones * torch.nan)

    @property
    def change(self) -> Tensor:
        """fp64 [ticks - 1]: the drift from each tick to the next."""
        return self.drift.diagonal(-1)

    def note(self, means: Tensor, at: int | tuple[int, int], value: float) -> None:
        """Adds the value of this run to one of the means."""
        before = means[at]
        means[at] = value if self.runs == 0 else before + (value - before) / (self.runs + 1)


@dataclass(frozen=True)
class RecordedSite:
    """A site that was recorded.

    Attributes:
        kind: as `Step.kind`: "model", "self-attention", "feed-forward", ...
        price: cost of computing it at one tick in all branches, in the units of reports; mean over ticks.
    """

    kind: str
    price: float


@dataclass
class Recording:
    """Runs of one pipeline with one number of steps.

    Attributes:
        models: its denoisers.
        noise_scheduler: its class name; None for a hand-written loop.
        sigmas: noise level of each tick; None where unknown.
        curves: statistics by site and branch.
        prompts: what was recorded: the number of calls, the hash of their arguments, and the options of `record`.
        sites: in the order of execution.
        rest: cost of one tick outside of these sites, in the unit of their prices.
        guidance_scale: of the last call; None where it is unknown.
    """

    models: Mapping[str, Model]
    noise_scheduler: str | None
    sigmas: tuple[float, ...] | None
    curves: dict[tuple[str, str], Curve] = field(default_factory=dict)
    prompts: dict[str, Any] = field(default_factory=dict)
    sites: dict[str, RecordedSite] = field(default_factory=dict)
    rest: float = 0.0
    guidance_scale: float | None = None

    @property
    def num_ticks(self) -> int:
        return len(next(iter(self.curves.values())).ratio)

    @property
    def leading(self) -> Curve:
        """The curve of the first site in the branch that was called first."""
        return next(iter(self.curves.values()))

    @property
    def leads(self) -> list[Curve]:
        """For each denoiser, the curve of its first site in the branch that was called first."""
        first: dict[str, Curve] = {}
        for (site, _), curve in self.curves.items():
            first.setdefault(site.split(".")[0], curve)
        return list(first.values())

    @property
    def runs(self) -> int:
        """How many calls were recorded."""
        return self.leading.runs

    def of(self, site: str) -> list[Curve]:
        """The curves of a site, one for each branch."""
        return [curve for (name, _), curve in self.curves.items() if name == site]

    def with_scale(self, predictor: Mapping[str, Any]) -> dict[str, Any]:
        """A predictor of schedules that are made from this recording, with the scale of guidance that they are made at."""
        return {
            **predictor,
            **({} if self.guidance_scale is None else {GUIDANCE_SCALE: self.guidance_scale}),
        }

    def table(self) -> str:
        """A Markdown table of the sites: cost of one tick in all branches, and mean change from tick to tick."""
        head = "| site | kind | share of work | ms | MFLOPs | change |\n|---|---|---|---|---|---|"
        total = self.rest + sum(site.price for site in self.sites.values())
        rows = [
            f"| {name} | {site.kind} | {site.price / total:.1%} "
            f"| {sum(1e3 * float(curve.seconds.nanmedian()) for curve in self.of(name)):.2f} "
            f"| {sum(curve.flops for curve in self.of(name)) / 1e6:.1f} "
            f"| {float(torch.stack([curve.change for curve in self.of(name)]).nanmean()):.4f} |"
            for name, site in self.sites.items()
        ]
        return "\n".join([head, *rows])

    def save(self, folder: str | Path) -> Path:
        """Writes `recording.json`, and `recording-<runs>.safetensors`, which it names.

        If this is interrupted, the recording that was there before stays.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / TENSORS_NAME.format(self.runs)
        with written_whole(file) as part:
            save_file(self.tensors(), part)
        with written_whole(folder / JSON_NAME) as part:
            part.write_text(json.dumps({**self.as_json(), "tensors": file.name}, indent=1) + "\n")
        for earlier in set(folder.glob(TENSORS_NAME.format("*"))) - {file}:
            earlier.unlink()
        return folder

    def tensors(self) -> dict[str, Tensor]:
        """The statistics of all curves by name."""
        curves = enumerate(self.curves.values())
        return {f"{i}.{name}": getattr(curve, name) for i, curve in curves for name in STATISTICS}

    def as_json(self) -> dict[str, Any]:
        """Everything but `tensors`."""
        return {
            "format": FORMAT,
            "models": {
                name: [m.name, m.config, [list(s) for s in m.latents]] for name, m in self.models.items()
            },
            "noise_scheduler": self.noise_scheduler,
            "sigmas": None if self.sigmas is None else list(self.sigmas),
            "curves": [[site, branch, c.flops, c.runs] for (site, branch), c in self.curves.items()],
            "prompts": self.prompts,
            "sites": {name: [site.kind, site.price] for name, site in self.sites.items()},
            "rest": self.rest,
            "guidance_scale": self.guidance_scale,
        }

    @classmethod
    def of_json(cls, data: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> "Recording":
        """The recording of what `as_json` and `tensors` returned."""
        models = {
            name: Model(kind, config, tuple(map(tuple, shapes)))
            for name, (kind, config, shapes) in data["models"].items()
        }
        curves = {
            (site, branch): Curve(
                **{name: tensors[f"{i}.{name}"] for name in STATISTICS}, flops=flops, runs=runs
            )
            for i, (site, branch, flops, runs) in enumerate(data["curves"])
        }
        sigmas = None if data["sigmas"] is None else tuple(data["sigmas"])
        sites = {name: RecordedSite(kind, price) for name, (kind, price) in data["sites"].items()}
        scale = data.get("guidance_scale")  # which older recordings do not say
        noise_scheduler, prompts = data["noise_scheduler"], data["prompts"]
        return cls(models, noise_scheduler, sigmas, curves, prompts, sites, data["rest"], scale)

    @classmethod
    def load(cls, folder: str | Path) -> "Recording":
        """Reads a recording.

        Raises:
            ScheduleError: a file is missing, cut short, or of another version.
        """
        folder = Path(folder)
        try:
            data = json.loads((folder / JSON_NAME).read_text())
            if data["format"] != FORMAT:
                raise ScheduleError(f"{folder}: format: this is version {data['format']}, not {FORMAT}.")
            return cls.of_json(data, load_file(folder / data["tensors"]))
        except (OSError, json.JSONDecodeError, SafetensorError, KeyError, ValueError) as error:
            if isinstance(error, ScheduleError):
                raise
            raise ScheduleError(f"{folder}: no recording, or a damaged one ({error}).") from error
