"""The kernel of the method `trajectory`: measured covariances of the testbeds, and the kernel that fits them best."""

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch

from diffcache.evals.experiments.curves import Curve
from diffcache.evals.harness.calls import call_of
from diffcache.evals.testbeds import splits, zoo
from diffcache.host.guidance import guidance_in
from diffcache.profiling.recording.covariance import covariance_of
from diffcache.profiling.recording.journal import Journal, journaling
from diffcache.profiling.recording.response import response_of
from diffcache.schedulers.moments import Moment
from diffcache.trajectory.kernel import Array, Kernel, UniversalKernel
from diffcache.trajectory.process import prior_process
from diffcache.trajectory.response import Response

MANY_STEPS = tuple(name for name in zoo.ALL if zoo.STEPS.get(name, 50) >= 10)
"""Testbeds that were not distilled to few steps."""
FITTED_ON = tuple(name for name in MANY_STEPS if name not in splits.UNSEEN)
"""Those that the prior is fitted on."""

SAMPLES = 4
STRIDES = (1, 2, 3, 4)
"""A kernel has to predict a tick from its neighbours and from ticks far away: so runs are thinned by these, too."""

START = UniversalKernel(Kernel(0.15, 0.16, 1e-3, 0.01, 0.43, 0.1, 3.0, 4e-5, 2e-3), 0.9)
"""Where the fit begins; all hyperparameters but the exponent are positive, and `constant` and `fine` are below 1."""

SCALES = (1.0, 2.5, 5.0, 7.5)
"""Of guidance."""

SHARES = ("constant", "fine")
ITERATIONS = 60
STEP = 1e-3
"""Of the differences that stand for derivatives, in the fit's own coordinates."""


class Setting(NamedTuple):
    """A run to measure: a testbed, the number of steps, and the guidance scale (None: the testbed's own)."""

    testbed: str
    steps: int
    guidance: float | None = None


@dataclass(frozen=True)
class Measured:
    """What a run shows.

    Attributes:
        setting: the run.
        strength: of guidance (see `diffcache.schedulers.guidance.Guidance`); 1 for none.
        covariance: [ticks, ticks].
        moments: of the ticks.
        response: of the denoiser.
    """

    setting: Setting
    strength: float
    covariance: Array
    moments: tuple[Moment, ...]
    response: Response

    def every(self, stride: int) -> "Measured":
        """The covariance of every so many ticks."""
        return replace(self, covariance=self.covariance[::stride, ::stride], moments=self.moments[::stride])

    @property
    def angles(self) -> list[float]:
        """Of the ticks, in radians."""
        return [float(moment.angle or 0) for moment in self.moments]


def settings(testbed: str) -> Iterator[Setting]:
    """The runs to which a prior is fitted: a testbed as its pipeline ships it, in 50 and in 20 steps, and with other scales of guidance."""
    yield Setting(testbed, 50)
    yield Setting(testbed, 20)
    if testbed in zoo.GUIDED:
        for scale in SCALES:
            yield Setting(testbed, 20, scale)


def measured(setting: Setting) -> Measured:
    """What a setting shows on calibration prompts and seeds."""
    name, steps, guidance = setting
    pipe, call = zoo.load(name), call_of(name, "covariance", steps, SAMPLES)
    if guidance is not None:
        call = zoo.guided(name, call, guidance)
    with TemporaryDirectory() as folder, journaling(Journal(Path(folder))):  # both measure one full run
        found, response = covariance_of(pipe, [call]), response_of(pipe, [call])
    assert response is not None  # the testbeds show their samples
    strength = replace(guidance_in(pipe, call), shown=found.amplification).strength
    return Measured(setting, strength, found.matrix, found.moments, response)


def changes(run: Measured, kernel: UniversalKernel) -> Curve:
    """How much a run's velocities change from one tick to the next, over what a kernel says of that."""
    expected = prior_process(kernel.at(run.strength), run.moments).covariance
    factors = _change(run.covariance) / _change(expected)
    return Curve(run.strength, run.angles[1:], factors.tolist())


def _change(covariance: Array) -> Array:
    """Root mean square, [ticks - 1]."""
    size = covariance.diagonal()
    change: Array = np.sqrt(
        np.maximum(size[1:] + size[:-1] - 2 * covariance.diagonal(1), np.finfo(float).eps)
    )
    return change


def fitted(runs: Sequence[Measured]) -> tuple[UniversalKernel, float]:
    """The kernel of greatest likelihood, each run counting alike, and its loss: minus the mean log likelihood per tick.

    The scale of each run is free, so only correlations are fitted (Rasmussen and Williams 2006, section 5.4.1).
    """
    thinned = [run.every(stride) for run in runs for stride in STRIDES if len(run.moments) // stride > 4]
    place = torch.tensor(_coordinates(START), dtype=torch.float64)
    place.requires_grad_()
    optimiser = torch.optim.LBFGS([place], max_iter=ITERATIONS, line_search_fn="strong_wolfe")

    def loss(at: Array) -> float:
        kernel = _kernel(at)
        return float(np.mean([_loss(run, kernel) for run in thinned]))

    def closure() -> float:
        at = place.detach().numpy().copy()
        steps = STEP * np.eye(len(at))
        slopes = [(loss(at + step) - loss(at - step)) / (2 * STEP) for step in steps]
        place.grad = torch.tensor(slopes, dtype=torch.float64)
        return loss(at)

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    at = place.detach().numpy()
    return _kernel(at), loss(at)


def _loss(run: Measured, kernel: UniversalKernel) -> float:
    covariance = prior_process(kernel.at(run.strength), run.moments).covariance
    factor = np.linalg.cholesky(correlation_of(covariance))
    half = np.linalg.solve(factor, correlation_of(run.covariance))
    scale = np.trace(np.linalg.solve(factor.T, half)) / len(covariance)
    return float(0.5 * np.log(max(scale, 1e-12)) + np.log(factor.diagonal()).mean())


def correlation_of(covariance: Array) -> Array:
    """With a diagonal of one, [ticks, ticks]."""
    size = np.sqrt(covariance.diagonal())
    correlation: Array = covariance / np.outer(size, size)
    return correlation


def _coordinates(kernel: UniversalKernel) -> list[float]:
    """Logarithms of hyperparameters, and log odds of shares; the exponent as it is."""
    plain = [
        float(np.log(value / (1 - value)) if field.name in SHARES else np.log(value))
        for field, value in zip(fields(Kernel), astuple(kernel.plain), strict=True)
    ]
    return [*plain, kernel.exponent]


def _kernel(coordinates: Any) -> UniversalKernel:
    *plain, exponent = coordinates
    values = {
        field.name: float(1 / (1 + np.exp(-x)) if field.name in SHARES else np.exp(x))
        for field, x in zip(fields(Kernel), plain, strict=True)
    }
    return UniversalKernel(Kernel(**values), float(exponent))
