"""Trajectory: the outputs of a run as one Gaussian process, which predicts, corrects, and says where to compute. Our own method."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from itertools import pairwise
from typing import ClassVar

import numpy as np

from diffcache.config import RunFacts, counted_guidance
from diffcache.method_config import method
from diffcache.prediction.hindsight import LARGEST_RATIO
from diffcache.prediction.predictors import Conditional, Polynomial, Predictor
from diffcache.recipes.budgeted import BudgetedConfig, allowed, choosable, evenly
from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.errors import ConfigError, ScheduleError
from diffcache.schedulers.guards import Guards
from diffcache.schedulers.interval import Interval
from diffcache.schedulers.moments import Moment, angles_of
from diffcache.trajectory.control import (
    TYPICAL,
    ExpectedErrorControl,
    ExpectedOf,
    PlannedTicks,
    PredictionError,
    cheapest,
)
from diffcache.trajectory.kernel import RIGHT_ANGLE, Array
from diffcache.trajectory.plan import HELD, TrajectoryPlan, planned
from diffcache.trajectory.prior import Prior, universal
from diffcache.trajectory.process import Process, positions_of, prior_process, with_second_calls
from diffcache.trajectory.response import SHARES, Response
from diffcache.trajectory.result_error import DOUBT, ResultError, Trust
from diffcache.trajectory.search import through
from diffcache.trajectory.transfer import (
    SAME,
    Measurement,
    are_angles,
    covariance_at,
    pure_noise_of,
    response_at,
)

Covariance = tuple[tuple[float, ...], ...]

Factors = tuple[tuple[float, ...], ...]

TOGETHER = 3
"""How many neighbours are moved at once where the covariance is the pipeline's own. With the universal one none is moved: gains that a longer search
finds there do not appear in real runs."""

SHORT = 0.5
"""A last step is short if it is less than so many times as long as the others in the mean."""

UNIVERSAL_DOUBT = 2.0
"""Of the universal response: some denoisers respond twice as strongly as others."""


@method
@dataclass(frozen=True, kw_only=True)
class TrajectoryConfig(BudgetedConfig):
    """Where: the whole denoiser. When: at the ticks that make the expected error of the result small. How: the conditional mean.

    The velocities of a run are taken for a Gaussian process over its ticks (`diffcache.trajectory`). Its covariance is a
    universal one, or was measured on full runs of the pipeline (`diffcache.tune`). One formula predicts reused ticks, corrects
    them at the next computed one, and says which ticks to compute: as few as keep the expected error below a threshold, or as
    many as a speed-up allows. Where the length of a run is unknown, it computes every nth tick, every second one without a
    speed-up, and a straight line predicts the others. Our own method, and the default.

    Attributes:
        threshold: bound on twice the expected error of the result, root mean square, as a fraction of the velocities' (0.02 is 2 %);
            0 computes everything. A run has no fewer computed ticks than a speed-up of 8 leaves.
        speedup: instead of a threshold: ticks of the run over computed ticks, at least; 1 computes everything.
        covariance: E<v_i, v_j> of the velocities at each two ticks of a run, per element, [ticks, ticks]; None: the universal one.
        response: of the denoiser at each tick, [3, ticks], as `diffcache.trajectory.response.Response` has it; None: the universal one.
        angles: atan2(noise, signal) of the ticks that both were measured at, in radians, [ticks]. If given, covariance and
            response are carried to runs of other lengths and noise levels (`diffcache.trajectory.transfer`), though not to another scale of
            guidance. None: both are of the run itself, which must be as long.
        pure_noise: the angle of pure noise in the run in which both were measured; None: the largest of `angles`.
        handovers: ticks at which another denoiser takes over (Wan 2.2), where they are known. They are computed, and nothing is predicted
            from what the denoiser before returned. They are not carried to other runs, so there can be no `angles` beside them.
        tail_steps: None: the last tick is computed unless its step is so short that the plan may do without it.
    """

    name: ClassVar[str] = "trajectory"

    threshold: float = 0.02
    covariance: Covariance | None = None
    response: Factors | None = None
    angles: tuple[float, ...] | None = None
    pure_noise: float | None = None
    handovers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("threshold", 0)
        if self.response is not None:
            parts = tuple(map(tuple, self.response))
            if (
                len(parts) != len(SHARES)
                or len({len(part) for part in parts}) > 1
                or not np.isfinite(parts).all()
            ):
                raise ConfigError("trajectory: response must be three rows of finite numbers, [3, ticks].")
            object.__setattr__(self, "response", parts)
        if self.covariance is not None:
            rows = tuple(map(tuple, self.covariance))
            square = rows and all(len(row) == len(rows) for row in rows) and np.isfinite(rows).all()
            if not square or not (np.diag(rows) > 0).all():
                raise ConfigError(
                    "trajectory: covariance must be a square of finite numbers, [ticks, ticks], with a variance above 0 at each tick."
                )
            object.__setattr__(self, "covariance", rows)
        if self.angles is not None:
            self._check_angles(self.angles)
        self._check("pure_noise", max(self.angles) - SAME if self.angles else 0)
        if self.pure_noise is not None and self.angles is None:
            raise ConfigError("trajectory: pure_noise belongs to angles: pass these too, or leave it out.")
        self._check_handovers()

    def _check_handovers(self) -> None:
        given = self.handovers
        whole = isinstance(given, (list, tuple)) and all(type(tick) is int for tick in given)
        if not whole or any(tick >= after for tick, after in pairwise((0, *given))):
            raise ConfigError("trajectory: handovers must be a tuple of ticks above 0, by rising number.")
        if given and self.angles is not None:
            raise ConfigError(
                "trajectory: handovers are ticks of the run that was measured, and are not carried to other runs: leave angles out."
            )
        object.__setattr__(self, "handovers", tuple(given))

    def _check_angles(self, angles: Sequence[float]) -> None:
        self._check_numbers("angles")
        known = [measured for measured in (self.covariance, self.response) if measured is not None]
        if not known:
            raise ConfigError(
                "trajectory: angles say where covariance or response was measured: pass one of these too, or leave angles out."
            )
        for measured in known:
            self._check_numbers("angles", len(measured[0]))
        if not are_angles(angles):
            raise ConfigError("trajectory: angles must be atan2(noise, signal) in radians, from 0 to pi / 2.")
        object.__setattr__(self, "angles", tuple(angles))

    @property
    def prior(self) -> Prior:
        """What is known of a pipeline before it is run."""
        return universal()

    def scheduler(self, run: RunFacts) -> CacheScheduler:
        if run.num_ticks is None or not (self.speedup or self.threshold):
            return Interval(math.ceil(self.speedup or (2 if self.threshold else 1)))
        expected = self._prediction_error(run)
        if self.speedup is not None:
            return PlannedTicks(self.plan(run, self.speedup), expected)
        plans = cache(partial(self.plan, run))
        return ExpectedErrorControl(run.num_ticks, plans, expected, self._expected_of(run), self.threshold)

    def remark(self, run: RunFacts) -> str | None:
        most = self.most_ticks(run)
        if most is None or self.speedup is None:
            return None
        expected = self.plan(run, self.speedup).expected
        if TYPICAL * expected <= self.threshold:
            return None
        error = f"{expected:.1%}" if expected < 1 else "more than 100%"
        return (
            f"speedup={self.speedup:g} leaves {most} computed ticks, for which an error of {error} is expected: "
            f"a plain run of {most} ticks may be as good, compare it (usually num_inference_steps={most})"
        )

    def predictor_for(self, run: RunFacts) -> Predictor:
        if run.num_ticks is None:
            return Polynomial(1, "angle")
        return self._conditional(run)

    def _conditional(self, run: RunFacts) -> Conditional:
        trust, moments, guidance = self._followed(run).trust, _moments(run), _guidance(run)
        process = self._process(moments, run.influence, guidance)
        return Conditional(
            process.believed(trust.roughness),
            trust.noise,
            between=process.covariance,
            measured=self._measured(moments, guidance),
        )

    def _measured(self, moments: Sequence[Moment], guidance: float) -> Measurement | None:
        """What a schedule needs, beside the covariance, to be planned anew for other runs; None where it cannot be."""
        angles = angles_of(moments)
        if self.covariance is None or angles is None or self.handovers:
            return None
        response = None if self.response is None else self._response(moments, guidance).factors
        return Measurement(angles, response, pure_noise_of(moments))

    def corrects(self, run: RunFacts) -> bool:
        return super().corrects(run) and (run.influence is None or self._followed(run).corrects)

    def _followed(self, run: RunFacts) -> TrajectoryPlan:
        """The plan that says how reused ticks are predicted and corrected: with a threshold, the one that runs usually come to."""
        if self.speedup is not None:
            return self.plan(run, self.speedup)
        plans = partial(self.plan, run)
        return plans(cheapest(plans, TYPICAL, self.threshold))

    def _expected_of(self, run: RunFacts) -> ExpectedOf:
        """The error of a run's result, where reused ticks are predicted and corrected as in the plan that runs usually come to."""

        def expected(computed: Sequence[int]) -> float:
            followed = self._followed(run)
            errors = _errors(self, _moments(run), run.influence, _guidance(run))
            return math.sqrt(errors(followed.trust, followed.corrects)(computed))

        return expected

    def _handovers_in(self, ticks: int) -> list[int]:
        """Those that come in a run of so many ticks."""
        return [tick for tick in self.handovers if tick < ticks]

    def tail(self, run: RunFacts) -> int:
        return 0 if run.influence is not None and _ends_short(run.influence[-1]) else 1

    def plan(self, run: RunFacts, speedup: float) -> TrajectoryPlan:
        """What is computed in a run of known length at a speed-up.

        Raises:
            ScheduleError: the covariance was measured on a run of another length, and cannot be carried to this one.
        """
        count = allowed(run.num_ticks or 1, speedup)
        if not self.handovers:  # some tick will be one
            count = choosable(count, run)
        return _plan(self, _moments(run), run.influence, count, self.guards(run), _guidance(run))

    def _prediction_error(self, run: RunFacts) -> PredictionError:
        """The expected error of a prediction at a computed tick; 0 where outputs are held: nothing is learned there."""
        if self._followed(run).trust == HELD:
            return lambda past, tick: 0.0
        return self._conditional(run).expected_error

    def _response(self, moments: Sequence[Moment], guidance: float) -> Response:
        typical = self.prior.response.at(moments, guidance)
        if self.response is None:
            return typical
        factors = np.array(self.response)
        angles = self._measured_at("response", factors.shape[1], moments)
        return Response(factors if angles is None else response_at(factors, angles, moments, typical.factors))

    def _process(
        self, moments: Sequence[Moment], influence: Sequence[Sequence[float]] | None, guidance: float
    ) -> Process:
        kernel = self.prior.kernel.at(guidance)
        if self.covariance is None:
            process = prior_process(kernel, moments)
        else:
            covariance, positions = np.array(self.covariance), positions_of(kernel, moments)
            angles = self._measured_at("covariance", len(covariance), moments)
            if angles is None:
                return Process(covariance, positions)
            process = Process(covariance_at(kernel, covariance, angles, moments, self.pure_noise), positions)
            if len({*angles}) < len(angles):  # second calls at a noise level were measured, too
                return process
        if influence is None:
            return process
        return with_second_calls(process, moments, influence, self._response(moments, guidance))

    def _measured_at(self, name: str, ticks: int, moments: Sequence[Moment]) -> tuple[float, ...] | None:
        """The angles from which what was measured has to be carried to a run's; None where it is of the run itself.

        Args:
            name: what was measured.
            ticks: in so many.
            moments: of the run's ticks.

        Raises:
            ScheduleError: it cannot be carried, and the run has another length.
        """
        if self.angles is not None and angles_of(moments) is not None:
            return self.angles
        if ticks != len(moments):
            unknown = "" if self.angles is None else " of unknown noise levels"
            raise ScheduleError(
                f"trajectory: the {name} was measured in {ticks} ticks and this run has {len(moments)}{unknown}: measure it with as many steps."
            )
        return None


def _moments(run: RunFacts) -> tuple[Moment, ...]:
    """Of a run's ticks, of which perhaps nothing but their number is known."""
    return run.moments or tuple(map(Moment, range(run.num_ticks or 0)))


def _guidance(run: RunFacts) -> float:
    """The scale of a run's guidance."""
    return counted_guidance(run.guidance_scale)


def _ends_short(influence: Sequence[float]) -> bool:
    """Whether the last velocity changes the result so little that a plan may do without it. Flows end so at their smallest noise level."""
    *others, last = np.abs(influence)
    return bool(others) and bool(last < SHORT * np.mean(others))


def _turns(moments: Sequence[Moment]) -> Array:
    """The influence where the noise scheduler's is unknown: a velocity moves the sample by the change of the angle, [ticks + 1, ticks].

    A run is taken to end with data, or where it goes from data to noise (inversion), with noise. It moves the sample at an even pace
    where angles are unknown.
    """
    angles, ticks = angles_of(moments), len(moments)
    if angles is None:
        turns = np.full(ticks, -1 / ticks)
    else:
        turns = np.diff([*angles, 0.0 if angles[-1] <= angles[0] else RIGHT_ANGLE])
    return np.tril(np.broadcast_to(turns, (ticks + 1, ticks)), -1)


@lru_cache(maxsize=64)
def _plan(
    config: TrajectoryConfig,
    moments: tuple[Moment, ...],
    influence: tuple[tuple[float, ...], ...] | None,
    count: int,
    guards: Guards,
    guidance: float,
) -> TrajectoryPlan:
    """The plan of a run; runs that are alike share it."""
    ticks = len(moments)
    ends = {0, *range(min(guards.warmup_steps, ticks)), *range(max(ticks - guards.tail_steps, 0), ticks)}
    forced = {*ends, *config._handovers_in(ticks)}
    even = through(np.array([evenly(ticks, max(count, len(forced)), guards)]), forced)[0].tolist()
    return planned(
        _errors(config, moments, influence, guidance),
        even,
        forced,
        0 if config.covariance is None else TOGETHER,
    )


def _errors(
    config: TrajectoryConfig,
    moments: tuple[Moment, ...],
    influence: tuple[tuple[float, ...], ...] | None,
    guidance: float,
) -> Callable[[Trust, bool], ResultError]:
    """Errors of a run's result, by how far the covariance is trusted, and whether reused ticks are corrected."""
    # Where the noise scheduler adds noise or clips, nothing is corrected.
    ratio = LARGEST_RATIO if config.hindsight and influence is not None else 0.0
    weighed = _turns(moments) if influence is None else np.array(influence)
    process, response = config._process(moments, influence, guidance), config._response(moments, guidance)
    process = replace(process, covariance=process.covariance / process.covariance.diagonal().mean())
    doubt = UNIVERSAL_DOUBT if config.response is None else DOUBT
    pace = config.prior.pace.at(moments, guidance) if config.covariance is None else np.ones(len(moments))
    handovers = config._handovers_in(len(moments))
    return lambda trust, corrects: ResultError(
        process, weighed, pace, response, ratio if corrects else 0.0, trust, doubt, handovers
    )
