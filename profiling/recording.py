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

FORMAT = 2
JSON_NAME, TENSORS_NAME = "recording.json", "recording.safetensors"


@dataclass
class Curve:
    """One place in one branch, means over runs.

    Attributes:
        drift: fp64 [ticks, ticks]: mean|f_s - f_g| / mean|f_s| of tick s to an earlier tick g; NaN where not compared.
        ratio: fp64 [ticks]: norm of each token's channels over that of the tick before, mean over tokens; 1 at tick 0.
        cosine: fp64 [ticks]: to the tick before; 1 at tick 0.
        runs: how many were recorded.
    """

    drift: Tensor
    ratio: Tensor
    cosine: Tensor
    runs: int = 0

    @classmethod
    def empty(cls, ticks: int) -> "Curve":
        drift = torch.full((ticks, ticks), torch.nan, dtype=torch.float64)
        return cls(drift, torch.ones(ticks, dtype=torch.float64), torch.ones(ticks, dtype=torch.float64))

    def note_drift(self, tick: int, earlier: int, value: float) -> None:
        self.drift[tick, earlier] = self._mean(self.drift[tick, earlier], value)

    def note_neighbours(self, tick: int, ratio: float, cosine: float) -> None:
        self.ratio[tick] = self._mean(self.ratio[tick], ratio)
        self.cosine[tick] = self._mean(self.cosine[tick], cosine)

    def _mean(self, before: Tensor, value: float) -> Tensor:
        return before.new_tensor(value) if self.runs == 0 else before + (value - before) / (self.runs + 1)


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
        prompts: how many calls were recorded, and a hash of what they were given.
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

    def save(self, folder: str | Path) -> Path:
        """Writes `recording.json` and `recording.safetensors`."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        data = {
            "format": FORMAT,
            "models": {
                name: [m.name, m.config, [list(s) for s in m.latents]] for name, m in self.models.items()
            },
            "noise_scheduler": self.noise_scheduler,
            "sigmas": None if self.sigmas is None else list(self.sigmas),
            "curves": [[place, branch, curve.runs] for (place, branch), curve in self.curves.items()],
            "prompts": self.prompts,
            "places": {name: [place.kind, place.price] for name, place in self.places.items()},
            "rest": self.rest,
        }
        (folder / JSON_NAME).write_text(json.dumps(data, indent=1) + "\n")
        tensors = {
            f"{i}.{name}": getattr(curve, name)
            for i, curve in enumerate(self.curves.values())
            for name in ("drift", "ratio", "cosine")
        }
        save_file(tensors, folder / TENSORS_NAME)
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> "Recording":
        """Reads a recording.

        Raises:
            ScheduleError: a file is missing, cut short, or of another version.
        """
        folder = Path(folder)
        try:
            data = json.loads((folder / JSON_NAME).read_text())
            tensors = load_file(folder / TENSORS_NAME)
            if data["format"] != FORMAT:
                raise ScheduleError(f"{folder}: format: this is version {data['format']}, not {FORMAT}.")
            models = {
                name: Model(kind, config, tuple(map(tuple, shapes)))
                for name, (kind, config, shapes) in data["models"].items()
            }
            curves = {
                (place, branch): Curve(
                    tensors[f"{i}.drift"], tensors[f"{i}.ratio"], tensors[f"{i}.cosine"], runs
                )
                for i, (place, branch, runs) in enumerate(data["curves"])
            }
            sigmas = None if data["sigmas"] is None else tuple(data["sigmas"])
            places = {name: Place(kind, price) for name, (kind, price) in data["places"].items()}
            return cls(models, data["noise_scheduler"], sigmas, curves, data["prompts"], places, data["rest"])
        except (OSError, json.JSONDecodeError, SafetensorError, KeyError, ValueError) as error:
            if isinstance(error, ScheduleError):
                raise
            raise ScheduleError(f"{folder}: no recording, or a damaged one ({error}).") from error
