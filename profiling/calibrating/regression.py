"""Regression of the truth on what a schedule would reuse, tick by tick, with sums over the calls.

An observer runs a schedule in shadow: everything is computed, and at each reused tick the prediction is compared with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import Self

from diffcache.engine.observers import Observer
from diffcache.prediction.correctors import GAIN, SHIFT, channel_dim, coefficient_name
from diffcache.profiling.recording.journal import Entry
from diffcache.schedulers.signals import EPS
from diffcache.schedulers.steps import MODEL, Step

SHRINKAGE = 8.0
"""n0 of the fit: coefficients from n samples are shrunk towards no correction by n / (n + n0). Our choice."""

LEAST_SHARE = 0.2
"""The shortest that a reused step may get, as a share of its nominal length. Our choice: ERTACache's bound is 0, and then no step is taken."""

SUMS = ("u", "y", "uu", "uy")
"""The sums of a `Regression` over channels."""


class Slot(NamedTuple):
    """What one regression is fitted to: a site in a branch, one of its streams, and a tick."""

    site: str
    branch: str
    stream: int
    tick: int


@dataclass
class Regression:
    """A linear regression of the truth y on a prediction u for each channel, from running fp64 sums."""

    n: float = 0.0
    u: Tensor | float = 0.0
    y: Tensor | float = 0.0
    uu: Tensor | float = 0.0
    uy: Tensor | float = 0.0
    samples: int = 0

    def add(self, u: Tensor, y: Tensor) -> None:
        """Adds a batch of predictions and the truth, of one shape."""
        channels = channel_dim(u)
        dims = [d for d in range(u.ndim) if d != channels]
        self.n += u.numel() / u.shape[channels]
        self.u, self.y = self.u + u.sum(dims), self.y + y.sum(dims)
        self.uu, self.uy = self.uu + (u * u).sum(dims), self.uy + (u * y).sum(dims)
        self.samples += len(u)

    def __iadd__(self, other: "Regression") -> Self:
        """Adds the sums of another regression of the same channels."""
        for name in ("n", "u", "y", "uu", "uy", "samples"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self

    @property
    def trust(self) -> float:
        """The share of a coefficient that is left after shrinkage."""
        return self.samples / (self.samples + SHRINKAGE)

    def fit(self) -> tuple[Tensor, Tensor]:
        """gain = Cov(u, y) / Var(u) and shift = mean y - gain * mean u of each channel, shrunk towards no correction.

        This is ERTACache's rectification (arXiv 2508.21091) linearised, where its sigmoid cancels.
        """
        u, y = torch.as_tensor(self.u) / self.n, torch.as_tensor(self.y) / self.n
        variance = torch.as_tensor(self.uu) / self.n - u * u
        covariance = torch.as_tensor(self.uy) / self.n - u * y
        gain = covariance / (variance + EPS)
        return 1 + self.trust * (gain - 1), self.trust * (y - gain * u)


@dataclass
class ShadowRegression(Observer):
    """Fits corrections to a schedule that runs in shadow. It keeps sums only.

    For a whole denoiser it compares outputs; for a site inside it features, which is what a block adds to its streams.

    Attributes:
        closed: the run continues with the prediction (closed loop), not with the truth.
        regressions: one for each slot.
        ratios: by tick, mean|prediction - output| over how far the output has moved since the tick before, and over the
            output's own size.
    """

    closed: bool = False
    shadow: bool = True
    regressions: dict[Slot, Regression] = field(default_factory=dict)
    ratios: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    _outputs: dict[tuple[str, str], tuple[int, Tensor]] = field(default_factory=dict)

    def predicted(
        self,
        denoiser: str,
        step: Step,
        guess: Sequence[Tensor],
        truth: Sequence[Tensor],
        features: Sequence[Tensor],
    ) -> Sequence[Tensor]:
        site = step.full_name(denoiser)
        continued = list(guess if self.closed else truth)
        for stream, (u, y, feature) in enumerate(zip(guess, truth, features, strict=True)):
            if y.is_floating_point():
                regression = self.regressions.setdefault(
                    Slot(site, step.branch, stream, step.tick), Regression()
                )
                x, target = _compared(step, u, y, feature)
                regression.add(x, target)
                continued[stream] = self.continued(regression, x, u, continued[stream])
        if step.kind == MODEL:
            self._note_ratio(site, step, guess[0], truth[0])
        return continued

    def continued(self, regression: Regression, x: Tensor, guess: Tensor, value: Tensor) -> Tensor:
        """What the run continues with.

        Args:
            regression: of this stream, with this call.
            x: what the regression was given, fp64.
            guess: the prediction.
            value: the prediction in a closed loop, else the truth.
        """
        return value

    def computed(
        self, denoiser: str, step: Step, features: Sequence[Tensor], outputs: Sequence[Tensor], stream: int
    ) -> None:
        if step.kind == MODEL:
            self._outputs[step.full_name(denoiser), step.branch] = step.tick, outputs[0].clone()

    def as_entry(self) -> Entry:
        """Its sums, for a journal."""
        slots = list(self.regressions)
        tensors = {
            f"{i}.{name}": torch.as_tensor(getattr(self.regressions[slot], name), dtype=torch.float64)
            for i, slot in enumerate(slots)
            for name in SUMS
        }
        counts = [[fit.n, fit.samples] for fit in self.regressions.values()]
        return Entry(tensors, {"slots": slots, "counts": counts, "ratios": list(self.ratios.items())})

    def add(self, entry: Entry) -> None:
        """Adds the sums of `as_entry`."""
        for i, (slot, (n, samples)) in enumerate(
            zip(entry.facts["slots"], entry.facts["counts"], strict=True)
        ):
            sums = {name: entry.tensors[f"{i}.{name}"] for name in SUMS}
            fit = self.regressions.setdefault(Slot(*slot), Regression())
            fit += Regression(n=n, samples=samples, **sums)
        for tick, ratios in entry.facts["ratios"]:
            self.ratios.setdefault(tick, []).extend(map(tuple, ratios))

    def coefficients(self, ticks: int) -> dict[str, Tensor]:
        """The fitted gain and shift, fp32 [ticks, channels], by name; 1 and 0 at ticks that are not reused."""
        found: dict[str, Tensor] = {}
        for slot, regression in self.regressions.items():
            for kind, row, empty in zip((GAIN, SHIFT), regression.fit(), (1.0, 0.0), strict=True):
                name = coefficient_name(slot.site, slot.branch, slot.stream, kind)
                table = found.setdefault(name, torch.full((ticks, len(row)), empty))
                table[slot.tick] = row.float()
        return found

    def published_shares(self, ticks: int, *, over_output: bool = False) -> list[float]:
        """phi = 1 - mean|v~ - v| / mean|v_s - v_{s-1}| of each reused tick, at least 0.2; 1 at all others and the last.

        Args:
            ticks: length of the run.
            over_output: divide by mean|v_s| instead. Transcriptions of the paper differ here.
        """
        shares = [1.0] * ticks
        for tick, ratios in self.ratios.items():
            if tick < ticks - 1:
                mean = sum(ratio[over_output] for ratio in ratios) / len(ratios)
                shares[tick] = min(max(1 - mean, LEAST_SHARE), 1.0)
        return shares

    def least_squares_shares(self, ticks: int) -> list[float]:
        """phi that minimises |phi v~ - v|^2 over the first stream, shrunk towards 1, in 0.2..1; 1 at other ticks and the last.

        Where affine maps have been fitted, next to nothing is left for it.
        """
        shares = [1.0] * ticks
        for tick in {slot.tick for slot in self.regressions if slot.stream == 0 and slot.tick < ticks - 1}:
            fits = [fit for slot, fit in self.regressions.items() if (slot.stream, slot.tick) == (0, tick)]
            uy, uu = (
                sum(float(torch.as_tensor(getattr(fit, name)).sum()) for fit in fits) for name in ("uy", "uu")
            )
            shrunk = 1 + fits[0].trust * (uy / (uu + EPS) - 1)
            shares[tick] = min(max(shrunk, LEAST_SHARE), 1.0)
        return shares

    def _note_ratio(self, site: str, step: Step, guess: Tensor, truth: Tensor) -> None:
        """Notes the error of a prediction over how far the output has moved since the tick before."""
        tick, before = self._outputs.get((site, step.branch), (-1, truth))
        if tick == step.tick - 1:
            error = (guess - truth).abs().mean()
            ratios = (error / ((truth - before).abs().mean() + EPS), error / (truth.abs().mean() + EPS))
            self.ratios.setdefault(step.tick, []).append((float(ratios[0]), float(ratios[1])))


@dataclass
class SequentialRegression(ShadowRegression):
    """Fits each reused tick on runs in which all earlier ticks are corrected (a sequential closed loop).

    It corrects each prediction at once, with the fit to all calls so far and this one. So one pass over the calls is enough, and
    for a single call of many samples the result is exact.
    """

    closed: bool = True

    def continued(self, regression: Regression, x: Tensor, guess: Tensor, value: Tensor) -> Tensor:
        shape = [1] * guess.ndim
        shape[channel_dim(guess)] = -1
        gain, shift = (row.reshape(shape) for row in regression.fit())
        return (guess + (gain - 1) * x + shift).to(guess.dtype)


def _compared(step: Step, u: Tensor, y: Tensor, feature: Tensor) -> tuple[Tensor, Tensor]:
    """The prediction and the truth of a regression, fp64: outputs of a whole denoiser, features of a site inside it."""
    u, y, feature = u.double(), y.double(), feature.double()
    return (u, y) if step.kind == MODEL else (u - y + feature, feature)
