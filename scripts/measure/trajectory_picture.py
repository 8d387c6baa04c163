"""Draws docs/pictures/trajectory.svg: what the model of a run's trajectory says of it, `python scripts/measure/trajectory_picture.py`.

Above, how uncertain a reused tick is before and after the next computed one; in the middle, the weights of the computed ticks that predict it; below,
the response of denoisers with and without guidance. All of it is what is known before a run: nothing is rendered.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from diffcache.evals.harness.command_line import parser
from diffcache.schedulers.guidance import Guidance
from diffcache.schedulers.moments import Moment
from diffcache.trajectory.error_model import WINDOW
from diffcache.trajectory.gaussian import BETWEEN, conditional_weights
from diffcache.trajectory.kernel import Array
from diffcache.trajectory.prior import universal
from diffcache.trajectory.process import prior_process

PATH = Path(__file__).resolve().parents[2] / "docs" / "pictures" / "trajectory.svg"
TICKS, APART, NOISE = 50, 4, 1e-3
SCALES = (1.0, 3.0, 7.0)


def main() -> None:
    parser(__doc__).parse_args()
    levels = np.linspace(1, 1 / TICKS, TICKS)
    angles = np.arctan2(levels, 1 - levels).tolist()
    moments = [Moment(i, angle=angle, is_flow=True) for i, angle in enumerate(angles)]
    process = prior_process(universal().kernel.at(Guidance().strength), moments)
    plt.rcParams["svg.hashsalt"] = "trajectory"
    figure, (above, middle, below) = plt.subplots(3, 1, figsize=(8, 7), sharex=True, layout="constrained")
    _uncertainties(above, process.covariance)
    _weights(middle, process.covariance)
    _responses(below, moments)
    below.set_xlabel("tick of 50, flow matching")
    PATH.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PATH, metadata={"Date": None})


def _uncertainties(axes: Axes, covariance: Array) -> None:
    """Standard deviations, as a fraction of the velocity."""
    for ahead, name in ((0, "predicted"), (1, "corrected at the next computed tick")):
        found = [_deviation(covariance, tick, _known(tick, ahead)) for tick in range(TICKS)]
        axes.plot(range(TICKS), found, label=name)
    axes.set_ylabel("standard deviation")
    axes.legend()


def _deviation(covariance: Array, tick: int, known: list[int]) -> float:
    if tick in known:
        return 0.0
    weights = conditional_weights(covariance, known, [tick], BETWEEN)[:, 0]
    explained = weights @ covariance[known, tick]
    return float(np.sqrt(max(covariance[tick, tick] - explained, 0) / covariance[tick, tick]))


def _known(tick: int, ahead: int) -> list[int]:
    """The computed ticks that a tick is taken from, oldest first."""
    computed = list(range(0, TICKS, APART))
    past = [other for other in computed if other <= tick]
    return past[-WINDOW:] + computed[len(past) : len(past) + ahead]


def _weights(axes: Axes, covariance: Array) -> None:
    ticks = [tick for tick in range((WINDOW - 1) * APART, TICKS) if tick % APART]
    found = np.array(
        [conditional_weights(covariance, _known(tick, 0), [tick], NOISE)[:, 0] for tick in ticks]
    )
    for i, name in enumerate(("newest", "second", "third", "fourth")):
        axes.plot(ticks, found[:, WINDOW - 1 - i], ".", label=name)
    axes.set_ylabel("weight of computed tick")
    axes.legend(ncols=WINDOW)


def _responses(axes: Axes, moments: list[Moment]) -> None:
    for scale, colour in zip(SCALES, ("C0", "C1", "C2"), strict=True):
        response = universal().response.at(moments, Guidance(scale).strength)
        axes.plot(range(TICKS), response.mean, color=colour, label=f"guidance {scale:g}")
        axes.plot(range(TICKS), response.spread, "--", color=colour)
    axes.set_ylabel("response: mean\n(dashed: spread)")
    axes.legend()


if __name__ == "__main__":
    main()
