"""Replay: a schedule as a method."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from torch import Tensor, nn

from diffcache.config import GUIDANCE, Boost, CacheConfig, GuidanceRule, RunFacts
from diffcache.host.identity import refuse_others
from diffcache.prediction.correctors import WEIGHTS, Affine, Corrector, Repair, denoiser_of, repairs_among
from diffcache.prediction.descriptions import predictor_from
from diffcache.prediction.predictors import Predictor
from diffcache.recipes.other_runs import (
    difference,
    other_guidance,
    other_steps,
    other_weights,
    same_levels,
    weights_in,
)
from diffcache.recipes.planning_anew import planning_anew
from diffcache.recipes.schedule_fields import LAST_STEP, RESPACED, check_fields
from diffcache.recipes.schedule_sites import check_sites, sites_of
from diffcache.recipes.trajectory import TrajectoryConfig
from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.errors import ConfigError, ScheduleError
from diffcache.schedulers.moments import angles_of
from diffcache.schedulers.schedule import EXPECTED_ERROR, GUIDANCE_SCALE, INFLUENCE, NOT_CALLED, Schedule
from diffcache.schedulers.table import Table
from diffcache.store.formats import DTYPES
from diffcache.store.streams import Basis

BOUND = ("conditional", "average velocity")
"""Predictors that are for the ticks of their own run."""


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(CacheConfig):
    """Where, when and how as a `Schedule` says; its warm-up and tail are part of the table.

    Attributes:
        schedule: what is replayed.
        resample: use it for runs of other lengths, noise levels or resolutions too, which are refused otherwise. Each
            tick takes the decision of the recorded tick that is nearest in noise level; corrections are left out. A schedule
            that was planned with the pipeline's own covariance is planned anew, with as large a speed-up and the usual warm-up and tail.
        rectify: apply the schedule's affine corrections and that of its last step, if it has any.
        respace: run at the schedule's own noise levels, if it has any.
        cache_dtype, hindsight: None: as in the run that was recorded.
        warmup_steps, tail_steps: None: 0, since the table has its own.
    """

    name: ClassVar[str] = "schedule"

    schedule: Schedule
    resample: bool = False
    rectify: bool = True
    respace: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for option in ("resample", "rectify", "respace"):
            self._choose(option, True, False)
        if self.cache_dtype is None:  # `check` refuses a schedule whose format is not known
            object.__setattr__(self, "cache_dtype", self.schedule.predictor.get("cache_dtype"))

    @property
    def stored_basis(self) -> Basis:
        basis: Basis = self.schedule.predictor.get("basis", "residual")
        return basis

    @property
    def own_hindsight(self) -> bool:
        """A new plan may correct where the schedule itself does not; `corrects` tells the two apart."""
        return self._recorded_hindsight or self._can_plan_anew

    @property
    def needs_influence(self) -> bool:
        """The last step was fitted to runs with certain steps of the noise scheduler."""
        return super().needs_influence or LAST_STEP in self.schedule.corrections

    @property
    def _recorded_hindsight(self) -> bool:
        return bool(self.schedule.predictor.get("hindsight", False))

    @property
    def _can_plan_anew(self) -> bool:
        return self.resample and "angles" in self.schedule.predictor

    @property
    def counts_guidance(self) -> bool:
        """Where the schedule says its scale: its error is of that one alone."""
        return GUIDANCE_SCALE in self.schedule.predictor

    @property
    def each_branch(self) -> bool:
        return True

    @property
    def rows_left_out(self) -> str | None:
        """What to tell where the recorded run computed some tokens only, and this one is not told which."""
        rows = self.schedule.producer.get("options", {}).get("rows")
        if rows is None:
            return None
        return f"the run that was recorded computed some tokens only (rows={rows!r}), and a schedule holds ticks: pass rows= as well"

    def options(self) -> dict[str, Any]:
        switches = {"resample": self.resample, "rectify": self.rectify, "respace": self.respace}
        return {**switches, "of": dict(self.schedule.producer)}

    def save_pretrained(self, folder: str | Path, models: object = None) -> NoReturn:
        """Refused: a schedule is saved by itself.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("a schedule is saved by itself: call config.schedule.save_pretrained(folder).")

    def sites(self, run: RunFacts) -> tuple[str, ...]:
        return sites_of(self.schedule, run.denoiser)

    def sites_in(self, run: RunFacts, branch: str) -> tuple[str, ...]:
        """Those that were recorded in this pass: one may leave out blocks, as skip-layer guidance does."""
        every = self.sites(run)
        marks = {site: self.schedule.marks(f"{run.denoiser}.{site}", branch) for site in every}
        return tuple(site for site in every if set(marks[site]) - {NOT_CALLED}) or every

    def guidance(self, run: RunFacts) -> GuidanceRule | None:
        if f"{run.denoiser}.{GUIDANCE}" not in self.schedule.table:
            return None
        boosts = self.schedule.predictor["guidance"]
        low, high = (Boost(factor, (begin, end)) for factor, begin, end in (boosts["low"], boosts["high"]))
        return GuidanceRule(self.scheduler(run), low, high)

    def check(self, denoisers: Mapping[str, nn.Module]) -> None:
        check_fields(self.schedule)
        if self.cache_dtype not in (None, *DTYPES):
            raise ScheduleError(
                f"predictor.cache_dtype: must be one of {', '.join(DTYPES)}, not {self.cache_dtype!r}."
            )
        made_for = {site: (model.name, model.config) for site, model in self.schedule.models.items()}
        refuse_others("schedule", made_for, denoisers)
        for site in made_for:
            check_sites(self.schedule, site, denoisers[site])

    def scheduler(self, run: RunFacts) -> CacheScheduler:
        anew = self._anew(run)
        if anew is None:
            return Table(self._for_run(run), run.denoiser)
        scheduler = anew.scheduler(run)
        if other_guidance(self.schedule, run) or other_weights(self.schedule, run):
            scheduler.expects_error = False  # what was measured is of another scale, or of other weights
        return scheduler

    def warmup(self, run: RunFacts) -> int:
        return 0

    def tail(self, run: RunFacts) -> int:
        return 0

    def predictor_for(self, run: RunFacts) -> Predictor:
        anew = self._anew(run)
        return predictor_from(self.schedule.predictor) if anew is None else anew.predictor_for(run)

    def corrects(self, run: RunFacts) -> bool:
        anew = self._anew(run)
        if anew is not None:
            return anew.corrects(run)
        return super().corrects(run) and (self._recorded_hindsight or not self._can_plan_anew)

    def remark(self, run: RunFacts) -> str | None:
        remarks, anew = [other_guidance(self.schedule, run)], self._anew(run)
        if anew is None and remarks[0] is None:  # where samples are clipped, guidance changes steps, too
            remarks += [self._other_steps(run)]
        if anew is not None or EXPECTED_ERROR in self.schedule.measured:
            remarks += [other_weights(self.schedule, run)]
        if anew is not None:
            remarks += [f"the schedule was planned anew for {run.num_ticks} ticks"]
            if remarks[0] is None:
                remarks.append(anew.remark(run))
        return "; ".join(remark for remark in remarks if remark is not None) or None

    def corrector(self, run: RunFacts) -> Corrector | None:
        mine = self._affine(run.denoiser, run.quantization)
        coefficients = {name: tensor for name, tensor in mine.items() if f"/{WEIGHTS}/" not in name}
        return Affine(coefficients, run.denoiser) if coefficients else None

    def last_step(self, run: RunFacts) -> tuple[float | None, ...] | None:
        weights = self._corrections.get(LAST_STEP)
        if weights is None or not self.rectify or not self._is_as_fitted(run):
            return None
        first, *of_tick = weights.tolist()
        computed = self.schedule.computed_ticks
        return (first, *(weight if tick in computed else None for tick, weight in enumerate(of_tick)))

    def corrections(self, run: RunFacts) -> Mapping[str, Tensor]:
        applied = dict(self._affine(run.denoiser, run.quantization))
        if self.last_step(run) is not None:
            applied[LAST_STEP] = self._corrections[LAST_STEP]
        levels = self._corrections.get(RESPACED)
        if levels is not None and self.respace and run.sigmas and same_levels(run.sigmas, levels.tolist()):
            applied[RESPACED] = levels
        return applied

    def repairs(self, site: str, quantization: str | None) -> Mapping[str, Repair]:
        return repairs_among(self._affine(site, quantization), site)

    def respaced(self, sigmas: list[float]) -> list[float] | None:
        levels = self._corrections.get(RESPACED)
        if levels is None or not self.respace:
            return None
        made = self.schedule.sigmas
        if made is None or not same_levels(sigmas, made):
            return None  # resampled, or refused at the run's first call
        return [float(level) for level in levels]

    @cached_property
    def _corrections(self) -> Mapping[str, Tensor]:
        """The schedule's coefficients, unless they were fitted with another one."""
        made = self.schedule
        if made.corrections and made.fitted_with != made.fingerprint():
            warnings.warn(
                "the schedule's corrections were fitted with other decisions or another quantisation: they are dropped.",
                stacklevel=2,
            )
            return {}
        return made.corrections

    def _affine(self, site: str, quantization: str | None) -> Mapping[str, Tensor]:
        """The affine corrections of a denoiser, unless they were fitted on other weights."""
        mine = {n: t for n, t in self._corrections.items() if denoiser_of(n) == site}
        made = self.schedule.quantization.get(site)
        if not self.rectify or not mine or made == quantization:
            return mine if self.rectify else {}
        warnings.warn(
            f"the schedule's corrections were fitted on {weights_in(made)}, and these are {weights_in(quantization)}: they are "
            "dropped; quantise as it was calibrated (quantize=), or calibrate anew.",
            stacklevel=2,
        )
        return {}

    def _anew(self, run: RunFacts) -> TrajectoryConfig | None:
        """What plans a run that the schedule is not for; None where the table is followed."""
        if not self._can_plan_anew or angles_of(run.moments) is None or self._difference(run) is None:
            return None
        return planning_anew(self.schedule, len(run.moments), self.hindsight)

    def _for_run(self, run: RunFacts) -> Schedule:
        """The schedule, resampled for the run where that is needed and was asked for."""
        obstacle = self._difference(run)
        if obstacle is None:
            is_as_measured = self._is_as_measured(run) and self._applies_all(run)
            return self.schedule if is_as_measured else replace(self.schedule, measured={})
        predictor = self.schedule.predictor
        if predictor["name"] in BOUND and (self.resample or "angles" not in predictor):
            raise ScheduleError(
                f"the schedule has {obstacle}, and predicts by what it knows of its own {self.schedule.num_ticks} ticks, which resample=True cannot carry "
                "over: tune one for this run, or use accelerate(pipe, speedup=)."
            )
        if not self.resample or run.num_ticks is None:
            raise ScheduleError(
                f"the schedule has {obstacle}: pass resample=True, or record one for this run."
            )
        return self.schedule.resampled(run.num_ticks, run.sigmas)

    def _is_as_measured(self, run: RunFacts) -> bool:
        """Whether the measured error holds for a run: it has the recorded guidance, weight format and steps, no added noise, and hindsight as recorded."""
        corrects = self.corrects(run) and (
            INFLUENCE not in self.schedule.predictor or run.on_result is not None
        )
        others = (
            other_guidance(self.schedule, run) or other_weights(self.schedule, run) or self._other_steps(run)
        )
        return others is None and not run.adds_noise and corrects == self._recorded_hindsight

    def _other_steps(self, run: RunFacts) -> str | None:
        """See `other_steps`."""
        return other_steps(self.schedule, run) if self.needs_influence else None

    def _applies_all(self, run: RunFacts) -> bool:
        """Whether a run has all corrections that its errors were measured with, of its denoiser."""
        mine = {
            name
            for name in self.schedule.corrections
            if name == LAST_STEP or denoiser_of(name) == run.denoiser
        }
        return mine <= {*self.corrections(run)}

    def _is_as_fitted(self, run: RunFacts) -> bool:
        """Whether the last step's weights fit a run: the measured error holds for it, and it has the recorded ticks."""
        return self._is_as_measured(run) and self._difference(run) is None

    def _difference(self, run: RunFacts) -> str | None:
        return difference(
            self.schedule, run, lambda: self._corrections.get(RESPACED) if self.respace else None
        )
