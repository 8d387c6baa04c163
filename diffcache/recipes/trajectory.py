"""Trajectory: the outputs of a run as one Gaussian process, which predicts, corrects, and says where to compute. Our own method."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from diffcache.config import RunFacts
from diffcache.method_config import method
from diffcache.prediction.predictors import Conditional, Polynomial, Predictor
from diffcache.recipes.budgeted import FEW, BudgetedConfig, allowed, choosable
from diffcache.recipes.few_steps import leaves, proposal
from diffcache.recipes.run_plans import chooses_last, course_of, error_models_of, plan_of_run
from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.interval import Interval
from diffcache.trajectory.control import ExpectedErrorControl, first_speedup, percent
from diffcache.trajectory.following import (
    ErrorOfPrediction,
    ErrorOfResult,
    PlannedTicks,
    usual_contrast_factor,
)
from diffcache.trajectory.known import Course, Known, Matrix
from diffcache.trajectory.plan import HELD, TrajectoryPlan
from diffcache.trajectory.prior import Prior, universal
from diffcache.trajectory.response import PARTS
from diffcache.trajectory.transfer import OWN, SAME, UNIVERSAL, are_angles

WORTH_COMPARING = 0.025
"""Where a larger error is expected of a speed-up than the default allows, the report advises to compare the run with fewer steps."""

WORTH_COMPARING_IF_FEW = 0.01
"""The same where fewer than `FEW` ticks are computed: in short runs plain steps come nearer."""


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
        threshold: bound on twice the expected error of the result, root mean square, as a fraction of its contrast (0.05 is 5 %);
            0 computes everything. A run has no fewer computed ticks than a speed-up of 8 leaves.
        speedup: instead of a threshold: ticks of the run over computed ticks, at least; 1 computes everything.
        covariance: E<v_i, v_j> of the velocities at each two ticks of a run, per element, [ticks, ticks]; None: the universal one.
        response: of the denoiser at each tick, [2, ticks], as `diffcache.trajectory.response.Response` has it; None: the universal one.
        angles: atan2(noise, signal) of the ticks that both were measured at, in radians, [ticks]. If given, covariance and
            response are carried to runs of other lengths and noise levels (`diffcache.trajectory.transfer`), though not to another scale of
            guidance. None: both are of the run itself, which must be as long.
        pure_noise: the angle of pure noise in the run in which both were measured; None: the largest of `angles`.
        handovers: ticks at which another denoiser takes over (Wan 2.2), where they are known. They are computed, and nothing is predicted
            from what the denoiser before returned. They are not carried to other runs, so there can be no `angles` beside them.
        amplification: size of the guided velocity over that of the conditional one at pure noise, at least 1 (see `diffcache.schedulers.guidance.Guidance`).
            None: read from the first step of each run, after which the other ticks are chosen; derived from the scale where that step does not show it.
        predicts_with: "own": reused ticks are predicted with `covariance`. "universal": ticks are chosen and corrected with `covariance`, and predicted with the
            universal one. Its weights are less steep, which can be better across long gaps.
        tail_steps: None: the plan decides about the last tick, but where the last step is not short it is always computed if the noise scheduler's steps are
            unknown, clip samples or add noise, and in runs of more than 100 ticks.
    """

    name: ClassVar[str] = "trajectory"

    threshold: float = 0.05
    covariance: Matrix | None = None
    response: Matrix | None = None
    angles: tuple[float, ...] | None = None
    pure_noise: float | None = None
    handovers: tuple[int, ...] = ()
    amplification: float | None = None
    predicts_with: str = OWN

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("threshold", 0)
        self._choose("predicts_with", OWN, UNIVERSAL)
        self._check("amplification", 1)
        if self.response is not None:
            parts = _rows(self.response)
            if len(parts) != PARTS:
                raise ConfigError(
                    "trajectory: response must be two rows of finite numbers, [2, ticks]; three rows are of an older version: tune again."
                )
            object.__setattr__(self, "response", parts)
        if self.covariance is not None:
            rows = _rows(self.covariance)
            if not rows or len(rows) != len(rows[0]) or not (np.diag(rows) > 0).all():
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

    @property
    def known(self) -> Known:
        """What was measured of the pipeline, and the prior for everything else."""
        return Known(
            self.prior,
            self.covariance,
            self.response,
            self.angles,
            self.pure_noise,
            self.handovers,
            self.amplification,
            self.predicts_with if self.covariance else OWN,
        )

    @property
    def counts_guidance(self) -> bool:
        return True

    @property
    def counts_amplification(self) -> bool:
        is_measured = self.covariance is not None and self.response is not None and self.angles is None
        return self.amplification is None and not is_measured

    def scheduler(self, run: RunFacts) -> CacheScheduler:
        if run.num_ticks is None or not (self.speedup or self.threshold):
            return Interval(math.ceil(self.speedup or (2 if self.threshold else 1)))
        expected, in_velocities = self._prediction_error(run), self._in_velocities(run)
        if self.speedup is not None:
            return PlannedTicks(self.plan(run, self.speedup), expected, self._expected_of(run), in_velocities)
        plans = cache(partial(self.plan, run))
        return ExpectedErrorControl(
            run.num_ticks, plans, expected, self._expected_of(run), self.threshold, in_velocities
        )

    def remark(self, run: RunFacts) -> str | None:
        most = self.most_ticks(run)
        if most is None or self.speedup is None:
            return None
        plan = self.plan(run, self.speedup)
        expected = plan.expected * usual_contrast_factor(self._in_velocities(run))
        most = max(most, len(plan.ticks))  # a longer warm-up goes beyond the speed-up
        least = WORTH_COMPARING if most >= FEW else WORTH_COMPARING_IF_FEW
        if run.adds_noise or expected <= least or self.max_consecutive_reuses is not None:
            return None
        return f"{leaves(self.speedup, most)}, for which an error of {percent(expected)} was expected when it was planned: {proposal(most, run)}"

    def predictor_for(self, run: RunFacts) -> Predictor:
        if run.num_ticks is None:
            return Polynomial(1, "angle")
        return self._conditional(run)

    def corrects(self, run: RunFacts) -> bool:
        """Whether hindsight is wanted. It still is where the influence is unknown: clipped steps are made again, and else the report says why nothing is corrected."""
        return super().corrects(run) and (run.influence is None or self._followed(run).corrects)

    def tail(self, run: RunFacts) -> int:
        course = self._course(run)
        return 0 if course.ends_short or chooses_last(course) else 1

    def plan(self, run: RunFacts, speedup: float) -> TrajectoryPlan:
        """What is computed in a run of known length at a speed-up. `plan_of_run` remembers plans, so that asking again costs nothing.

        Raises:
            ScheduleError: the covariance was measured on a run of another length, and cannot be carried to this one.
        """
        count = allowed(run.num_ticks or 1, speedup)
        if not self.handovers:  # where another denoiser takes over is not known yet, and is computed besides
            count = choosable(count, run)
        return plan_of_run(self.known, self.hindsight, self._course(run), count, self.guards(run))

    def _course(self, run: RunFacts) -> Course:
        return course_of(run, self.amplification)

    def _followed(self, run: RunFacts) -> TrajectoryPlan:
        """The plan that says how reused ticks are predicted and corrected: with a threshold, the one that runs usually come to."""
        if self.speedup is not None:
            return self.plan(run, self.speedup)
        plans = partial(self.plan, run)
        return plans(first_speedup(plans, self.threshold, in_velocities=self._in_velocities(run)))

    def _in_velocities(self, run: RunFacts) -> bool:
        """Whether errors are told as fractions of the velocities, and not of the contrast of the result, because both are about as large.

        Latents' own are 1.45 times as large, and those of the pictures that are decoded from them 0.69 times as large as these (geometric mean over
        eleven testbeds, 0.4 to 1.2). Where samples are clipped, steps are made again, which makes errors as much smaller as the contrast makes
        them larger (ddpm and ddim).
        """
        retraces = run.clipped_influence is not None and bool(self.hindsight)
        return run.decodes or retraces

    def _conditional(self, run: RunFacts) -> Conditional:
        caution, known, course = self._followed(run).caution, self.known, self._course(run)
        return Conditional(
            known.predicting_process_of(course).believed(caution.roughness),
            caution.noise,
            covariance=known.process_of(course).covariance,
            measured=known.measurement(course),
        )

    def _prediction_error(self, run: RunFacts) -> ErrorOfPrediction:
        """The expected error of a prediction at a computed tick; 0 where nothing is learned from the measured one.

        That is where outputs are held. It is also at a speed-up with the pipeline's own covariance: what that expects of the result is nearer
        to the truth as it is.
        """
        has_own_plan = self.speedup is not None and self.covariance is not None
        if has_own_plan or self._followed(run).caution == HELD:
            return lambda past, tick: 0.0
        return self._conditional(run).expected_error

    def _expected_of(self, run: RunFacts) -> ErrorOfResult:
        """The error of a run's result, where reused ticks are predicted and corrected as in the plan that runs usually come to."""

        def expected(computed: Sequence[int]) -> float:
            followed = self._followed(run)
            if followed.ticks == tuple(computed):
                return followed.expected
            errors = error_models_of(self.known, self.hindsight, self._course(run))
            return errors(followed.caution, followed.corrects).likely(computed)

        return expected


def _rows(matrix: Any) -> Matrix:
    """A matrix as a method keeps it; empty where it is none, or has a number that is not finite."""
    try:
        found = np.array(matrix, dtype=float)
    except (TypeError, ValueError):
        return ()
    is_matrix = found.ndim == 2 and bool(np.isfinite(found).all())
    return tuple(map(tuple, found.tolist())) if is_matrix else ()
