"""Where in a denoising loop a denoiser call stands, and what is decided there."""

from enum import Enum
from typing import NamedTuple

from diffcache.schedulers.moments import Moment

MODEL = "model"
"""Name and kind of the site that is the whole denoiser."""


class Step(NamedTuple):
    """Where one denoiser call stands in its run, and at which site.

    Attributes:
        tick: 0-based number of model evaluations of the loop before this one.
        num_ticks: how many the run will have; None where nothing says so.
        branch: the guidance pass ("cond", "uncond", or "0", "1", ... where the pipeline names none).
        sigma: noise level of this tick on the noise scheduler's own axis; None where unknown.
        repeats_sigma: the tick stands at the noise level of the one before it (PNDM, restarts).
        site: name of the site that is decided: "model" for the whole denoiser, else as `discover` lists it.
        kind: its kind: "model", "stack", "range", "block", "self-attention", ...
        training_time: the noise scheduler's timestep as a fraction of its training steps; None where unknown.
        angle: atan2(noise, signal) of this tick, 0 to pi / 2; None where unknown.
        scale: the factor of the velocity in what the denoiser returns.
        turned: the angle of pure noise less this angle; None where unknown.
        is_flow: signal and noise of the sample sum to one, as in flow matching.
    """

    tick: int
    num_ticks: int | None
    branch: str
    sigma: float | None = None
    repeats_sigma: bool = False
    site: str = MODEL
    kind: str = MODEL
    training_time: float | None = None
    angle: float | None = None
    scale: float = 1.0
    turned: float | None = None
    is_flow: bool = False

    def full_name(self, denoiser: str) -> str:
        """The site's name in reports and schedules: the denoiser's, followed by that of a site inside it."""
        return denoiser if self.site == MODEL else f"{denoiser}.{self.site}"

    @property
    def moment(self) -> Moment:
        return Moment(self.tick, self.sigma, self.angle, self.scale, self.turned, self.is_flow)

    @property
    def time(self) -> float:
        """Training time of this tick as a fraction, 1 for pure noise; the share of ticks left where it is unknown."""
        if self.training_time is not None:
            return self.training_time
        return 1.0 if self.num_ticks is None else 1 - self.tick / self.num_ticks


class Decision(Enum):
    """What is done at a call; the value is its mark in timelines and schedules.

    PREDICT is by the method's predictor. LINE goes straight on through the newest two features, and HOLD keeps the newest,
    whatever the predictor is. ROWS computes some tokens of the picture; no cache scheduler decides so, but a rule beside it.
    """

    COMPUTE = "#"
    ROWS = "%"
    PREDICT = "-"
    LINE = "/"
    HOLD = "="

    @property
    def computes(self) -> bool:
        return self is Decision.COMPUTE


class Verdict(NamedTuple):
    """What is done at one call with one lane; `reason` says why it was computed, where that was not the method's own decision."""

    decision: Decision
    reason: str | None = None
