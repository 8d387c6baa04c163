"""Where in a denoising loop a denoiser call stands, and what is decided there."""

from dataclasses import dataclass
from enum import Enum

MODEL = "model"
"""Name and kind of the site that is the whole denoiser."""


@dataclass(frozen=True, slots=True)
class Step:
    """The place of one denoiser call in its run.

    Attributes:
        tick: 0-based number of model evaluations of the loop before this one.
        num_ticks: how many the run will have; None where nothing says so.
        branch: the guidance pass ("cond", "uncond", or "0", "1", ... where the pipeline names none).
        sigma: noise level of this tick on the noise scheduler's own axis; None where unknown.
        repeats_sigma: the tick stands at the noise level of the one before it (PNDM, restarts).
        site: name of the place that is decided: "model" for the whole denoiser, else as `discover` lists it.
        kind: its kind: "model", "stack", "range", "block", "self-attention", ...
    """

    tick: int
    num_ticks: int | None
    branch: str
    sigma: float | None = None
    repeats_sigma: bool = False
    site: str = MODEL
    kind: str = MODEL


class Decision(Enum):
    """What is done at a call; the value is its mark in timelines and schedules."""

    COMPUTE = "#"
    PREDICT = "-"
    HOLD = "="

    @property
    def computes(self) -> bool:
        return self is Decision.COMPUTE
