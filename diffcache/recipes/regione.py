"""RegionE: an edit is computed where it changes the reference; the rest keeps its velocity."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from diffcache.config import CacheConfig, RunFacts
from diffcache.method_config import method
from diffcache.prediction.predictors import Hold, Predictor, Scaled
from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.guards import Guards
from diffcache.schedulers.interval import Interval
from diffcache.schedulers.ticks import Ticks
from diffcache.store.streams import Basis
from diffcache.tokens.row_rule import FullCalls, Region, RowRule

STEPS = 28
"""The length of run for which all of the paper's numbers are."""

MOST = 0.6
"""Where more of the picture is edited, all of it is computed."""

ETA: Mapping[str, float] = {"FluxTransformer2DModel": 0.93, "QwenImageTransformer2DModel": 0.80}
DELTA: Mapping[str, float] = {"FluxTransformer2DModel": 0.04, "QwenImageTransformer2DModel": 0.03}
"""Published for FLUX.1 Kontext and Qwen-Image-Edit. Step1X-Edit, which Diffusers does not have, takes eta=0.88, delta=0.02."""
GAMMA: Mapping[str, tuple[float, ...]] = {
    "FluxTransformer2DModel": (
        0.8352, 0.9986, 1.0090, 1.0097, 1.0161, 1.0152, 1.0160, 1.0173, 1.0177, 1.0199, 1.0213, 1.0203, 1.0257, 1.0236,
        1.0235, 1.0278, 1.0302, 1.0311, 1.0352, 1.0371, 1.0391, 1.0459, 1.0498, 1.0581, 1.0693, 1.0866, 1.1090,
    ),
    "QwenImageTransformer2DModel": (
        1.0195, 1.0233, 1.0243, 1.0185, 1.0321, 1.0208, 1.0260, 1.0233, 1.0258, 1.0292, 1.0316, 1.0306, 1.0289, 1.0347,
        1.0329, 1.0402, 1.0378, 1.0384, 1.0413, 1.0444, 1.0526, 1.0400, 1.0555, 1.0439, 1.0357, 1.0118, 0.7603,
    ),
}  # fmt: skip
"""How a velocity's magnitude changes from step to step, beside 1 - dsigma: FLUX.1 Kontext and Qwen-Image-Edit. The authors' code rounds
them to float16, on which the choice of ticks depends."""


@method
@dataclass(frozen=True, kw_only=True)
class RegionEConfig(CacheConfig):
    """Where: the tokens of an edit's region. When: where velocities have decayed by more than a threshold; all tokens at the first ticks,
    one in the middle, and in runs of eight steps or more the last. How: velocities are scaled inside the region, and held outside.

    RegionE (arXiv 2510.25590) for pipelines that append the tokens of a reference to those of the picture: the region comes from
    what stands still between ticks, so no pipeline is known by name. Its three parts: adaptive region partition (ARP) chooses
    the tokens (`diffcache.tokens.region`); the region-instruction K/V cache (RIKV) keeps the other tokens' keys and values, here after
    norms and positions; the adaptive velocity decay cache (AVDC) skips a tick of the region, v_i = r_i v_(i-1) with
    r_i = gamma_i (1 - dsigma_i), until 1 - prod r_i exceeds `delta`. Several skips in a row scale by the product of their ratios, and in
    the authors' code by the newest ratio alone.

    All counts of ticks are for 28 steps, and are scaled to a run's own number; so are the ratios gamma.

    Attributes:
        eta: tokens of a cosine similarity to the reference up to this are edited; None: as published, else 0.93.
        delta: 0 computes the region at every tick; None: as published, 0 for denoisers without published ratios.
        refresh: the tick after the one in the middle that computes all tokens.
        smooth: the region is eroded and dilated.
        warmup_steps: None: 6.
    """

    name: ClassVar[str] = "regione"

    eta: float | None = None
    delta: float | None = None
    refresh: int = 16
    smooth: bool = True
    tail_steps: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("eta", -1)
        self._check("delta", 0)
        self._check("refresh", 1, whole=True)
        self._choose("smooth", True, False)

    @property
    def stored_basis(self) -> Basis:
        return "output"

    def warmup(self, run: RunFacts) -> int:
        return 6

    def guards(self, run: RunFacts) -> Guards:
        guards = super().guards(run)
        first, last = (_scaled(count, run.num_ticks) for count in (guards.warmup_steps, guards.tail_steps))
        return replace(guards, warmup_steps=max(first, 1), tail_steps=last)

    def token_rows(self, run: RunFacts) -> RowRule:
        guards, eta = self.guards(run), ETA.get(run.denoiser_class, 0.93) if self.eta is None else self.eta
        full = FullCalls(guards.warmup_steps, None, guards.tail_steps, (self._middle(run),))
        return RowRule(Region(eta, self.smooth), full, order=0, holds=True, most=MOST)

    def scheduler(self, run: RunFacts) -> CacheScheduler:
        computed = self._computed(run)
        return Interval(1) if computed is None else Ticks(computed)

    def predictor_for(self, run: RunFacts) -> Predictor:
        ratios = self._ratios(run)
        return Hold() if ratios is None else Scaled([1.0, *ratios])

    def _middle(self, run: RunFacts) -> int:
        """The tick in the middle that computes all tokens."""
        return _scaled(self.refresh - 1, run.num_ticks)

    def _ratios(self, run: RunFacts) -> list[float] | None:
        """r_i of ticks 1, 2, ...; None where nothing is skipped."""
        gamma, delta = GAMMA.get(run.denoiser_class), self._delta(run)
        if gamma is None or run.sigmas is None or len(run.sigmas) < 2 or delta == 0:
            return None
        pairs = zip(_resampled(gamma, len(run.sigmas)), run.sigmas, run.sigmas[1:], strict=False)
        return [gain * (1 - (before - now)) for gain, before, now in pairs]

    def _delta(self, run: RunFacts) -> float:
        return DELTA.get(run.denoiser_class, 0.0) if self.delta is None else self.delta

    def _computed(self, run: RunFacts) -> frozenset[int] | None:
        """The ticks at which anything is computed; None for all."""
        ratios = self._ratios(run)
        if ratios is None or run.num_ticks is None:
            return None
        guards, middle = self.guards(run), self._middle(run)
        forced = {
            *range(guards.warmup_steps + 1),
            middle,
            *range(run.num_ticks - guards.tail_steps, run.num_ticks),
        }
        computed, kept = set(forced), 1.0
        for tick, ratio in enumerate(ratios, 1):
            kept = 1.0 if tick in forced or ratio >= 1 else kept * ratio
            if tick in forced or ratio >= 1 or 1 - kept > self._delta(run):
                computed.add(tick)
                kept = 1.0
        return frozenset(computed)


def _scaled(count: int, num_ticks: int | None) -> int:
    """A count of ticks of 28 for a run of another length."""
    return count if num_ticks is None else min(math.floor(count * num_ticks / STEPS + 0.5), num_ticks)


def _resampled(gamma: Sequence[float], num_ticks: int) -> list[float]:
    """Ratios for a run of another length: their logarithms, added up, are a curve over the run."""
    grown = np.concatenate([[0.0], np.cumsum(np.log(np.array(gamma, dtype=np.float16).astype(float)))])
    at = np.linspace(0, len(gamma), num_ticks)
    values: list[Any] = np.exp(np.diff(np.interp(at, range(len(grown)), grown))).tolist()
    return [float(value) for value in values]
