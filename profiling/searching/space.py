"""What a schedule search moves in: tables of a recording's places, with what each place costs and how it drifts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from diffcache.profiling.recording.recording import Recording
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.schedule import ALL, Schedule
from diffcache.schedulers.search.response import Response
from diffcache.schedulers.steps import MODEL

HOLD: Mapping[str, Any] = {"name": "hold", "basis": "residual"}
EXTRAPOLATE: Mapping[str, Any] = {"name": "polynomial", "order": 1, "axis": "sigma", "basis": "output"}


@dataclass(frozen=True)
class Space:
    """Tables, bool [T, S], of T ticks and S places; all branches of a place decide alike.

    Args:
        recording: made with `record(pipe, calls, sites=...)` of the whole run (`lag=None`). Whole denoisers are to be
            recorded with the basis of the predictor.
        predictor: what fills in where nothing is computed, as `Schedule.predictor`.
        sensitivity: float64 [S, T], picture error for each unit of squared drift, as `probed` measures it; None: unknown.
        response: how the pictures move when all places reuse a tick, as `probed` measures it; None: unknown.

    Attributes:
        drifts: float64 [S, T, T]; entry [s, a, t] is what reusing a's feature costs at t. Without a sensitivity it is
            mean|f_t - f_a| / mean|f_t|, mean over calls and branches; with one it is the picture error to be expected.
        prices: cost of computing each place once, as reports weigh it, in whole units.
        rest: cost of a tick at which every place is reused.

    Raises:
        ConfigError: a place was not called at every tick, or lies inside a denoiser, where hindsight amends nothing.
    """

    recording: Recording
    predictor: Mapping[str, Any] = field(default_factory=lambda: HOLD)
    sensitivity: Tensor | None = field(default=None, repr=False)
    response: Response | None = field(default=None, repr=False)
    drifts: Tensor = field(init=False, repr=False)
    prices: list[int] = field(init=False, repr=False)
    rest: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.predictor.get("hindsight") and set(self.kinds) != {MODEL}:
            raise ConfigError("predictor: hindsight amends whole denoisers only: record with sites='model'.")
        drifts = torch.stack([_mean_drift(self.recording, place) for place in self.places])
        later = torch.ones_like(drifts[0], dtype=torch.bool).tril(-1)
        for place, drift in zip(self.places, drifts, strict=True):
            if bool(drift[later].isnan().any()):
                raise ConfigError(
                    f"{place} was not called or not compared at every tick: record whole runs (lag=None) with calls "
                    "that use every denoiser throughout."
                )
        drifts = torch.where(later, drifts, 0.0).mT.contiguous()
        if self.sensitivity is not None:
            drifts = (drifts * _growth(self.num_ticks, self.predictor)).square() * self.sensitivity.unsqueeze(
                1
            )
        object.__setattr__(self, "drifts", drifts)
        prices = [max(round(place.price), 1) for place in self.recording.places.values()]
        object.__setattr__(self, "prices", prices)
        object.__setattr__(self, "rest", round(self.recording.rest))

    @property
    def num_ticks(self) -> int:
        return self.recording.num_ticks

    @property
    def places(self) -> tuple[str, ...]:
        return tuple(self.recording.places)

    @property
    def kinds(self) -> tuple[str, ...]:
        """What each place is: "model", "self-attention", ..."""
        return tuple(place.kind for place in self.recording.places.values())

    @property
    def about(self) -> dict[str, Any]:
        """What a search of this space is of, as its folder keeps it: pipeline, noise levels, places, predictor."""
        return {
            "models": {name: [model.name, model.config] for name, model in self.recording.models.items()},
            "noise scheduler": self.recording.noise_scheduler,
            "noise levels": self.recording.sigmas,
            "ticks": self.num_ticks,
            "places": self.places,
            "predictor": dict(self.predictor),
        }

    def compute(self, tables: Tensor) -> Tensor:
        """Share of the full run's work, float64 [n], of tables [n, T, S]."""
        return share_of(tables, self.prices, self.rest)

    def together(self, ticks: Iterable[int]) -> Tensor:
        """The table [T, S] with which all places compute at these ticks."""
        table = torch.zeros(self.num_ticks, len(self.places), dtype=torch.bool)
        table[list(ticks)] = True
        return table

    def budget(self, compute: float) -> int:
        """What a share of the full run's work leaves for the places, in the unit of their prices.

        Raises:
            ConfigError: it does not pay for every place once.
        """
        return budget_for(compute, self.num_ticks, self.prices, self.rest)

    def schedule(self, table: Tensor, producer: Mapping[str, Any]) -> Schedule:
        """A table [T, S] as an artifact; `producer` says how it was found."""
        return Schedule(
            models=self.recording.models,
            table=marks_of(self.places, table),
            noise_scheduler=self.recording.noise_scheduler,
            sigmas=self.recording.sigmas,
            predictor=self.predictor,
            producer={**producer, "calibration": self.recording.prompts},
            measured={"compute_fraction": round(float(self.compute(table)), 4)},
        )


def share_of(tables: Tensor, prices: Sequence[int], rest: int) -> Tensor:
    """Share of the full run's work, float64 [...], of tables [..., T, S]; `rest` is a tick's cost beside the places."""
    each = torch.tensor(prices, dtype=torch.float64)
    return (tables.double().mean(-2) @ each + rest) / (each.sum() + rest)


def budget_for(compute: float, ticks: int, prices: Sequence[int], rest: int) -> int:
    """What a share of the full run's work leaves for the places.

    Raises:
        ConfigError: it does not pay for every place once.
    """
    budget = round(compute * ticks * (sum(prices) + rest)) - ticks * rest
    if budget < sum(prices):
        least = float(share_of(torch.eye(ticks, 1, dtype=torch.bool).expand(-1, len(prices)), prices, rest))
        raise ConfigError(f"compute: {compute} does not pay for one tick; give at least {least:.2f}.")
    return budget


def marks_of(places: Sequence[str], table: Tensor) -> dict[str, dict[str, str]]:
    """A table [T, S] as a schedule writes it down: marks by place."""
    return {
        place: {ALL: "".join("#" if computes else "-" for computes in column)}
        for place, column in zip(places, table.T.tolist(), strict=True)
    }


def _mean_drift(recording: Recording, place: str) -> Tensor:
    """[tick, earlier tick], over the branches that compared them."""
    curves = [curve.drift for (name, _), curve in recording.curves.items() if name == place]
    return torch.stack(curves).nanmean(0)


def _growth(ticks: int, predictor: Mapping[str, Any]) -> Tensor:
    """[T, T]: how a predictor's error grows with the distance d, over how the drift does, 1 at d = 1.

    A polynomial of order m through even distances errs by the product of d, d + 1, ..., d + m, where holding errs by d.
    What hindsight makes of that depends on the computed tick after, which only `Response` looks at.
    """
    distance = (torch.arange(ticks) - torch.arange(ticks).unsqueeze(1)).clamp_min(1).double()
    growth = torch.ones_like(distance)
    for j in range(1, predictor.get("order", 0) + 1):
        growth *= (distance + j) / (1 + j)
    return growth
