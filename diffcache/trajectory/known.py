"""What is known of a run's velocities before its first tick: what was measured of the pipeline, and what all denoisers have in common."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from diffcache.schedulers.errors import ScheduleError
from diffcache.schedulers.moments import Moment, angles_of, signal_and_noise
from diffcache.trajectory.error_model import Caution, ErrorModel
from diffcache.trajectory.kernel import Array
from diffcache.trajectory.prior import Prior
from diffcache.trajectory.process import Process, positions_of, prior_process, with_second_calls
from diffcache.trajectory.response import Response, over_flow
from diffcache.trajectory.transfer import OWN, Measurement, covariance_at, pure_noise_of, response_at

Matrix = tuple[tuple[float, ...], ...]

SHORT = 0.5
"""A last step is short if it is less than so many times as long as the others in the mean."""

WITHOUT_NOISE_LEVELS = 2.0
"""Expected errors are multiplied by this where noise levels are unknown, because they may be others than are assumed. On flux, sd3 and wan, in 24 and 50 steps,
with and without guidance, measured errors are 0.7 to 5 times as large as expected without it, and 1.6 times in the median."""

CLIPPED_OUTPUT_NOISE = 1e-2
"""`Kernel.output_noise` of predicted noise where the noise scheduler clips predicted samples. Such models are mostly trained with the plain loss, which
learns little where there is much noise. The testbeds of the prior have a loss that weighs it more. Chosen on a model of 16 x 16 digits."""

ErrorModelFor = Callable[[Caution, bool], ErrorModel]
"""The model of a run's errors, by how careful predictions are, and whether reused ticks are corrected."""


class Course(NamedTuple):
    """The part of `RunFacts` that a plan depends on. It is taken out by `recipes.run_plans.course_of`, since this room must not import `config`.

    Attributes:
        moments: of its ticks.
        influence: of each tick's velocity on the sample at each tick and, in the last row, on the result, [ticks + 1, ticks]; None where
            the noise scheduler adds noise or clips.
        strength: of guidance (see `Guidance`); 1 for none.
        clipped: the influence where samples are clipped, in the root mean square; else None.
        adds_noise: the noise scheduler adds fresh noise at its steps.
    """

    moments: tuple[Moment, ...]
    influence: Matrix | None
    strength: float
    clipped: Matrix | None = None
    adds_noise: bool = False

    @property
    def ends_short(self) -> bool:
        """Whether the last velocity changes the result so little that a plan may do without it. Flows end so at their smallest noise level."""
        if self.influence is None:
            return False
        *others, last = np.abs(self.influence[-1])
        return bool(others) and bool(last < SHORT * np.mean(others))

    @property
    def clips_predicted_noise(self) -> bool:
        """Whether the denoiser predicts noise, and the samples that follow are clipped."""
        # No other output holds so little of the velocity.
        return self.clipped is not None and 0 < min(moment.scale for moment in self.moments) < 0.5

    @property
    def influence_or_guess(self) -> Array:
        """The influence. Where it is unknown, a velocity moves a flow's sample by the change of its share of noise, as Euler's steps do; or, at each two
        equal noise levels, as Heun's do.

        A run is taken to end with data, or where it goes from data to noise (inversion), with noise. It moves the sample at an even pace
        where angles are unknown.
        """
        if self.influence is not None:
            return np.array(self.influence)
        angles, ticks = angles_of(self.moments), len(self.moments)
        if angles is None:
            return np.tril(np.full((ticks + 1, ticks), -1 / ticks), -1)
        shares = [signal_and_noise(angle, is_flow=True)[1] for angle in angles]
        steps = np.diff([*shares, float(angles[-1] > angles[0])])
        scales = np.array([*over_flow(self.moments), 1.0])
        found = np.tril(np.outer(scales, steps), -1)
        for second in range(1, ticks - 1):
            # Heun's method makes the step with the mean of both velocities.
            if angles[second] == angles[second + 1]:
                found[second + 1 :, second - 1 : second + 1] = (
                    scales[second + 1 :, None] * steps[second - 1] / 2
                )
        return found


@dataclass(frozen=True)
class Known:
    """What was measured of a pipeline, as `TrajectoryConfig` has it, and the prior for everything else.

    Attributes:
        prior: of all denoisers.
        covariance, response, angles, pure_noise, handovers, amplification, predicts_with: see `TrajectoryConfig`.
    """

    prior: Prior
    covariance: Matrix | None = None
    response: Matrix | None = None
    angles: tuple[float, ...] | None = None
    pure_noise: float | None = None
    handovers: tuple[int, ...] = ()
    amplification: float | None = None
    predicts_with: str = OWN

    @property
    def as_planned(self) -> "Known":
        """What ticks are chosen with: reused ones are taken to be predicted with the same covariance."""
        return replace(self, predicts_with=OWN)

    @property
    def universal(self) -> "Known":
        """The prior alone."""
        return Known(self.prior)

    def predicting_process_of(self, course: Course) -> Process:
        """The velocities of a run as reused ticks are predicted with them.

        Raises:
            ScheduleError: as `process_of`.
        """
        return (self if self.predicts_with == OWN else self.universal).process_of(course)

    def process_of(self, course: Course) -> Process:
        """The velocities of a run.

        Raises:
            ScheduleError: the covariance was measured in another number of ticks, and cannot be carried to this run.
        """
        kernel, moments = self.prior.kernel.at(course.strength), course.moments
        if course.clips_predicted_noise:
            kernel = replace(kernel, output_noise=CLIPPED_OUTPUT_NOISE)
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
        if course.influence is None:
            return process
        return with_second_calls(process, moments, course.influence, self.response_of(course))

    def response_of(self, course: Course) -> Response:
        """The response of the denoiser at each tick of a run.

        Raises:
            ScheduleError: it was measured in another number of ticks, and cannot be carried to this run.
        """
        if self.response is None:
            return self.prior.response.at(course.moments, course.strength)
        factors = np.array(self.response)
        angles = self._measured_at("response", factors.shape[1], course.moments)
        if angles is None:
            return Response(factors)
        return Response(response_at(factors, angles, course.moments))

    def error_models(self, course: Course, largest_ratio: float) -> ErrorModelFor:
        """The models of the error of a run's result.

        Args:
            course: of the run.
            largest_ratio: see `ErrorModel`, where reused ticks are corrected.
        """
        ticks, influence = len(course.moments), course.influence_or_guess
        process, response = self.process_of(course), self.response_of(course)
        process = replace(process, covariance=process.covariance / process.covariance.diagonal().mean())
        predicting = None if self.predicts_with == OWN else self.predicting_process_of(course)
        is_universal = self.covariance is None
        pace = self.prior.pace.at(course.moments, course.strength) if is_universal else np.ones(ticks)
        if is_universal and angles_of(course.moments) is None:
            pace = WITHOUT_NOISE_LEVELS * pace
        handovers = self.handovers_in(ticks)

        def model(
            moved: Array, caution: Caution, corrects: bool, with_clipping: ErrorModel | None = None
        ) -> ErrorModel:
            ratio = largest_ratio if corrects else 0.0
            return ErrorModel(
                process, moved, pace, response, ratio, caution, handovers, with_clipping, predicting
            )

        if course.clipped is None:
            return partial(model, influence)
        # Plans turn out better that are made as if nothing were clipped.
        clipped = np.array(course.clipped)
        return lambda caution, corrects: model(
            influence, caution, corrects, model(clipped, caution, corrects)
        )

    def handovers_in(self, ticks: int) -> list[int]:
        """Those that come in a run of so many ticks."""
        return [tick for tick in self.handovers if tick < ticks]

    def measurement(self, course: Course) -> Measurement | None:
        """What a schedule needs, beside the covariance, to be planned anew for other runs; None where it cannot be."""
        angles = angles_of(course.moments)
        if self.covariance is None or angles is None or self.handovers:
            return None
        response = None if self.response is None else self.response_of(course).factors
        pure_noise = pure_noise_of(course.moments)
        return Measurement(angles, response, pure_noise, self.amplification, self.predicts_with)

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
