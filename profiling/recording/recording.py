"""A recording: what a recorder saw, as files that calibrations are made from."""

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
from diffcache.schedulers.schedule import Model

FORMAT = 3
JSON_NAME, TENSORS_NAME = "recording.json", "recording-{}.safetensors"
STATISTICS = ("drift", "ratio", "cosine", "seconds")


@dataclass
class Curve:
    """One place in one branch, means over runs.

    Attributes:
        drift: fp64 [ticks, ticks]: mean|f_s - f_g| / mean|f_s| of tick s to an earlier tick g; NaN where not compared.
        ratio: fp64 [ticks]: norm of each token's channels over that of the tick before, mean over tokens; 1 at tick 0.
        cosine: fp64 [ticks]: to the tick before; 1 at tick 0.
        seconds: fp64 [ticks]: wall time; NaN where not measured, and longer at tick 1, where operations were counted.
        flops: floating-point operations (matrix products, convolutions, attention); 0 where nothing was counted.
        runs: how many were recorded.
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
        """fp64 [ticks - 1]: drift from each tick to the next."""
        return self.drift.diagonal(-1)

    def note(self, means: Tensor, at: int | tuple[int, int], value: float) -> None:
        """Takes this run's value into one of the means."""
        before = means[at]
        means[at] = value if self.runs == 0 else before + (value - before) / (self.runs + 1)


@dataclass(frozen=True)
class Place:
    """What was recorded.

    Attributes:
        kind: as `Step.kind`: "model", "self-attention", "feed-forward", ...
        price: cost of computing it at one tick in all branches, as reports weigh it; mean over ticks.
    """

    kind: str
    price: float


@dataclass
class Recording:
    """Of one pipeline at one number of steps.

    Attributes:
        models: its denoisers.
        noise_scheduler: class name.
        sigmas: noise level of each tick, where known.
        curves: by place and branch.
        prompts: what was asked to be recorded: how many calls, a hash of what they were given, and how.
        places: what the curves are of, in the order of execution.
        rest: cost of what lies beside the places, in the unit of their prices.
    """

    models: Mapping[str, Model]
    noise_scheduler: str | None
    sigmas: tuple[float, ...] | None
    curves: dict[tuple[str, str], Curve] = field(default_factory=dict)
    prompts: dict[str, Any] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    rest: float = 0.0

    @property
    def num_ticks(self) -> int:
        return len(next(iter(self.curves.values())).ratio)

    @property
    def leading(self) -> Curve:
        """Of the branch that came first, at the first place."""
        return next(iter(self.curves.values()))

    @property
    def leads(self) -> list[Curve]:
        """Of each denoiser, the branch that came first, at its first place."""
        first: dict[str, Curve] = {}
        for (place, _), curve in self.curves.items():
            first.setdefault(place.split(".")[0], curve)
        return list(first.values())

    @property
    def runs(self) -> int:
        """How many calls have been recorded."""
        return self.leading.runs

    def of(self, place: str) -> list[Curve]:
        """A place's curves, one for each branch."""
        return [curve for (name, _), curve in self.curves.items() if name == place]

    def table(self) -> str:
        """Places with their cost at one tick in all branches, and their mean change from tick to tick, as Markdown."""
        head = "| place | kind | share of work | ms | MFLOPs | change |\n|---|---|---|---|---|---|"
        total = self.rest + sum(place.price for place in self.places.values())
        rows = [
            f"| {name} | {place.kind} | {place.price / total:.1%} "
            f"| {sum(1e3 * float(curve.seconds.nanmedian()) for curve in self.of(name)):.2f} "
            f"| {sum(curve.flops for curve in self.of(name)) / 1e6:.1f} "
            f"| {float(torch.stack([curve.change for curve in self.of(name)]).nanmean()):.4f} |"
            for name, place in self.places.items()
        ]
        return "\n".join([head, *rows])

    def save(self, folder: str | Path) -> Path:
        """Writes `recording.json` and, which it names, `recording-<runs>.safetensors`.

        Whoever is interrupted leaves the recording that was there before.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {
            f"{i}.{name}": getattr(curve, name)
            for i, curve in enumerate(self.curves.values())
            for name in STATISTICS
        }
        file = folder / TENSORS_NAME.format(self.runs)
        save_file(tensors, file)
        written = folder / f"{JSON_NAME}.new"
        written.write_text(json.dumps(self._as_json(file.name), indent=1) + "\n")
        written.replace(folder / JSON_NAME)
        for earlier in set(folder.glob(TENSORS_NAME.format("*"))) - {file}:
            earlier.unlink()
        return folder

    def _as_json(self, tensors: str) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "tensors": tensors,
            "models": {
                name: [m.name, m.config, [list(s) for s in m.latents]] for name, m in self.models.items()
            },
            "noise_scheduler": self.noise_scheduler,
            "sigmas": None if self.sigmas is None else list(self.sigmas),
            "curves": [[place, branch, c.flops, c.runs] for (place, branch), c in self.curves.items()],
            "prompts": self.prompts,
            "places": {name: [place.kind, place.price] for name, place in self.places.items()},
            "rest": self.rest,
        }

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
            tensors = load_file(folder / data["tensors"])
            models = {
                name: Model(kind, config, tuple(map(tuple, shapes)))
                for name, (kind, config, shapes) in data["models"].items()
            }
            curves = {
                (place, branch): Curve(
                    **{name: tensors[f"{i}.{name}"] for name in STATISTICS}, flops=flops, runs=runs
                )
                for i, (place, branch, flops, runs) in enumerate(data["curves"])
            }
            sigmas = None if data["sigmas"] is None else tuple(data["sigmas"])
            places = {name: Place(kind, price) for name, (kind, price) in data["places"].items()}
            return cls(models, data["noise_scheduler"], sigmas, curves, data["prompts"], places, data["rest"])
        except (OSError, json.JSONDecodeError, SafetensorError, KeyError, ValueError) as error:
            if isinstance(error, ScheduleError):
                raise
            raise ScheduleError(f"{folder}: no recording, or a damaged one ({error}).") from error
