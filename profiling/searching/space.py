"""The search space of schedules: tables over the sites of a recording, with the price and the drift of each site."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from diffcache.profiling.recording.recording import Recording
from diffcache.profiling.recording.shares import TooLittle, check_share
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.schedule import ALL, Schedule, marks_of
from diffcache.schedulers.search.response import PictureResponse
from diffcache.schedulers.steps import MODEL

HOLD: Mapping[str, Any] = {"name": "hold", "basis": "residual"}
"""The predictor that holds the residual v - x."""

EXTRAPOLATE: Mapping[str, Any] = {"name": "polynomial", "order": 1, "axis": "angle", "basis": "velocity"}
"""The predictor that extrapolates the output linearly."""


@dataclass(frozen=True)
class Space:
    """Tables, bool [T, S], of T ticks and S sites. All branches of a site decide alike.

    Args:
        recording: made by `record(pipe, calls, sites=...)` over whole runs (`lag=None`). Of whole denoisers the basis of the
            predictor must be recorded.
        predictor: predicts what is not computed, as `Schedule.predictor`.
        sensitivity: float64 [S, T], the picture's error for each unit of squared drift, as `probed` measures it; None: unknown.
        response: how the pictures move when all sites reuse a tick, as `probed` measures it; None: unknown.

    Raises:
        ConfigError: a site was not called at every tick, or hindsight is asked for sites inside a denoiser.
    """

    recording: Recording
    predictor: Mapping[str, Any] = field(default_factory=lambda: HOLD)
    sensitivity: Tensor | None = field(default=None, repr=False)
    response: PictureResponse | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.predictor.get("hindsight") and set(self.kinds) != {MODEL}:
            raise ConfigError(
                "predictor: hindsight corrects whole denoisers only: record with sites='model'."
            )
        for site, drift in zip(self.sites, self.recorded_drifts, strict=True):
            if bool(drift.isnan().any()):
                raise ConfigError(
                    f"{site} was not called or not compared at every tick: record whole runs (lag=None) with calls "
                    "that use every denoiser throughout."
                )

    @cached_property
    def recorded_drifts(self) -> Tensor:
        """float64 [S, T, T]; entry [s, a, t] is mean|f_t - f_a| / mean|f_t|, mean over calls and branches; 0 where t <= a."""
        drifts = torch.stack([_mean_drift(self.recording, site) for site in self.sites])
        later = torch.ones_like(drifts[0], dtype=torch.bool).tril(-1)
        return torch.where(later, drifts, 0.0).mT.contiguous()

    @cached_property
    def drifts(self) -> Tensor:
        """float64 [S, T, T]; entry [s, a, t] is the error at t if the feature of a is reused.

        With a sensitivity it is the expected error of the picture, else the recorded drift.
        """
        if self.sensitivity is None:
            return self.recorded_drifts
        return self.errors.square() * self.sensitivity.unsqueeze(1)

    @property
    def errors(self) -> Tensor:
        """float64 [S, T, T]: the recorded drifts, as much larger as the predictor's errors grow faster with the distance."""
        return self.recorded_drifts * _growth(self.num_ticks, self.predictor)

    @property
    def prices(self) -> list[int]:
        """The cost of computing each site once, in whole units of reports."""
        return [max(round(site.price), 1) for site in self.recording.sites.values()]

    @property
    def rest(self) -> int:
        """The cost of a tick at which every site is reused, in the same unit."""
        return round(self.recording.rest)

    @property
    def num_ticks(self) -> int:
        return self.recording.num_ticks

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(self.recording.sites)

    @property
    def kinds(self) -> tuple[str, ...]:
        """What each site is: "model", "self-attention", ..."""
        return tuple(site.kind for site in self.recording.sites.values())

    @property
    def about(self) -> dict[str, Any]:
        """What tells this space from others, for a search to note in its folder."""
        return {
            "models": {name: [model.name, model.config] for name, model in self.recording.models.items()},
            "noise scheduler": self.recording.noise_scheduler,
            "noise levels": self.recording.sigmas,
            "ticks": self.num_ticks,
            "sites": self.sites,
            "predictor": dict(self.predictor),
        }

    def compute(self, tables: Tensor) -> Tensor:
        """The share of the full run's work, float64 [n], of tables [n, T, S]."""
        each = torch.tensor(self.prices, dtype=torch.float64)
        return (tables.double().mean(-2) @ each + self.rest) / (each.sum() + self.rest)

    def together(self, ticks: Iterable[int]) -> Tensor:
        """The table [T, S] in which all sites compute at these ticks and at no others."""
        table = torch.zeros(self.num_ticks, len(self.sites), dtype=torch.bool)
        table[list(ticks)] = True
        return table

    def budget(self, compute: float) -> int:
        """What a share of the full run's work leaves for the sites, in the unit of their prices.

        Raises:
            ConfigError: it is no share, or does not pay for computing every site once.
        """
        check_share(compute)
        once = sum(self.prices)
        budget = round(compute * self.num_ticks * (once + self.rest)) - self.num_ticks * self.rest
        if budget < once:
            least = float(self.compute(self.together([0])))
            raise TooLittle(
                f"compute: {compute} does not pay for one tick; give at least {least:.2f}.", least
            )
        return budget

    def schedule(self, table: Tensor, producer: Mapping[str, Any]) -> Schedule:
        """A table [T, S] as a schedule; `producer` says how it was found."""
        return Schedule(
            models=self.recording.models,
            table={
                site: {ALL: marks_of(column)}
                for site, column in zip(self.sites, table.T.tolist(), strict=True)
            },
            noise_scheduler=self.recording.noise_scheduler,
            sigmas=self.recording.sigmas,
            predictor=self.recording.with_scale(self.predictor),
            producer={**producer, "calibration": self.recording.prompts},
            measured={"compute_fraction": round(float(self.compute(table)), 4)},
        )


def _mean_drift(recording: Recording, site: str) -> Tensor:
    """[tick, earlier tick], mean over the branches that compared them."""
    return torch.stack([curve.drift for curve in recording.of(site)]).nanmean(0)


def _growth(ticks: int, predictor: Mapping[str, Any]) -> Tensor:
    """[T, T]: how a predictor's error grows with the distance d over how the drift grows; 1 at d = 1.

    A polynomial of order m through ticks at equal distances d errs by the product of d, d + 1, ..., d + m; holding errs by d.
    With hindsight the error depends on the next computed tick, which only `PictureResponse` knows.
    """
    distance = (torch.arange(ticks) - torch.arange(ticks).unsqueeze(1)).clamp_min(1).double()
    growth = torch.ones_like(distance)
    for j in range(1, predictor.get("order", 0) + 1):
        growth *= (distance + j) / (1 + j)
    return growth
