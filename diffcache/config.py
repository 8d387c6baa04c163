"""CacheConfig: what a method for diffusion is: where, when and how it reuses, and the options that methods share."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from diffcache.discovery.taps import Tap
from diffcache.method_config import MethodConfig
from diffcache.prediction.correctors import Corrector, Repair
from diffcache.prediction.predictors import Hold, Predictor
from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.guards import Guards
from diffcache.schedulers.guidance import UNTOLD, Guidance
from diffcache.schedulers.interval import Window
from diffcache.schedulers.moments import Moment
from diffcache.schedulers.steps import MODEL
from diffcache.store.formats import DTYPES, Format, format_of
from diffcache.store.placement import HostMemory
from diffcache.store.streams import Basis
from diffcache.tokens.row_rule import RowRule

CPU = torch.device("cpu")


@dataclass(frozen=True)
class RunFacts:
    """What a method may know of a run before it starts.

    Attributes:
        denoiser_class: the denoiser's class name: published defaults depend on it.
        experts: how many denoisers of that class take turns (two in Wan 2.2).
        num_ticks: length of the run; None where it is unknown.
        asked: number of steps that the caller asked for; the noise scheduler may have made more or fewer ticks of them. None where it is unknown.
        denoiser: the denoiser's name in the target.
        sigmas: noise level of each tick; None where unknown.
        moments: when each tick is; empty where the length of the run is unknown.
        influence: how much the sample at each tick and, in the last row, the result change with the velocity at each tick, [ticks + 1, ticks];
            None where unknown, or noise is added or samples are clipped.
        clipped_influence: the same where samples are clipped, as the root mean square over elements, since some are clipped and some are not; else None.
        noise_scheduler: its class name; None in a hand-written loop that does not name it.
        adds_noise: the noise scheduler adds fresh noise at its steps.
        guidance: how the call guides.
        latents: shapes of the denoiser's latents, without the batch dimension.
        device: where they are.
        blocks: number of blocks in each of the denoiser's lists.
        quantization: what the denoiser's weights are quantised to (see `quantization_of`); None: they are not.
        decodes: the pipeline makes pictures of the result with an autoencoder.
        evolves: its output is what the noise scheduler steps with; a control network's is not.
    """

    denoiser_class: str
    experts: int = 1
    num_ticks: int | None = None
    asked: int | None = None
    denoiser: str = "denoiser"
    sigmas: tuple[float, ...] | None = None
    moments: tuple[Moment, ...] = ()
    influence: tuple[tuple[float, ...], ...] | None = None
    clipped_influence: tuple[tuple[float, ...], ...] | None = None
    noise_scheduler: str | None = None
    adds_noise: bool = False
    guidance: Guidance = UNTOLD
    latents: tuple[tuple[int, ...], ...] = ()
    device: torch.device = CPU
    blocks: Mapping[str, int] = field(default_factory=dict)
    quantization: str | None = None
    decodes: bool = False
    evolves: bool = True

    @property
    def on_result(self) -> list[float] | None:
        """How much the result changes with each tick's velocity, to six digits, [ticks]; None where it is unknown."""
        known = self.clipped_influence or self.influence
        return [float(f"{number:.6g}") for number in known[-1]] if known else None


GUIDANCE = "guidance"
"""Name and kind of the site that is the unconditional pass."""


@dataclass(frozen=True)
class Boost:
    """A factor that applies inside a window of training time (fractions, both ends excluded)."""

    factor: float = 1.0
    window: Window = (-1.0, 2.0)

    def at(self, time: float) -> float:
        return self.factor if self.window[0] < time < self.window[1] else 1.0


@dataclass(frozen=True)
class GuidanceRule:
    """When and how the unconditional pass is rebuilt from the conditional one.

    Attributes:
        scheduler: when.
        low, high: factors by which the low and the high frequencies of the difference grow at every reuse.
    """

    scheduler: CacheScheduler
    low: Boost = Boost()
    high: Boost = Boost()

    def describe(self) -> dict[str, Any]:
        """Its numbers, for a schedule."""
        return {"low": [self.low.factor, *self.low.window], "high": [self.high.factor, *self.high.window]}


@dataclass(frozen=True, kw_only=True)
class CacheConfig(MethodConfig):
    """One method: where (site), when (cache scheduler), how (predictor). Immutable; holds no state of any run.

    Attributes:
        warmup_steps: ticks at the start of each run that are computed. None: the method's own rule.
        tail_steps: ticks at the end of each run that are computed. None: the method's own rule, one tick unless it says otherwise.
        max_consecutive_reuses: reuses in a row after which a tick is computed; None for no cap.
        cache_dtype: what is stored is rounded to "bfloat16" or "float16" (largest number 65504), or to eight bits with a
            scale for each token, "int8" or "float8". None: as computed, a residual one precision wider.
        cache_device: "cpu" keeps it in host memory. None: where it was computed.
        hindsight: at each computed tick, correct the error of the reused ticks before it (`diffcache.prediction.hindsight`); for
            whole denoisers, and not together with affine corrections. None: as the method does by itself.

    Raises:
        ConfigError: an option out of range.
    """

    warmup_steps: int | None = None
    tail_steps: int | None = None
    max_consecutive_reuses: int | None = None
    cache_dtype: str | None = None
    cache_device: str | None = None
    hindsight: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("warmup_steps", 0, whole=True)
        self._check("tail_steps", 0, whole=True)
        self._check("max_consecutive_reuses", 1, whole=True)
        self._choose("cache_dtype", None, *DTYPES)
        self._choose("cache_device", None, "cpu")
        self._choose("hindsight", None, True, False)
        if self.hindsight is None:
            object.__setattr__(self, "hindsight", self.own_hindsight)

    def _check_site(self) -> None:
        """Refuses a `site` that is no name."""
        site = getattr(self, "site", None)
        if not isinstance(site, str) or not site:
            raise ConfigError(f"{self.name}: site must be the name or kind of a site, not {site!r}.")

    def check(self, denoisers: Mapping[str, nn.Module]) -> None:
        """Raises ScheduleError or TargetError where the method is for other denoisers than these."""

    def sites(self, run: RunFacts) -> tuple[str, ...]:
        """Where: "model" for the whole denoiser, or sites inside it (see `diffcache.discovery.site_names`)."""
        return (MODEL,)

    def sites_in(self, run: RunFacts, branch: str) -> tuple[str, ...]:
        """`sites` of the guidance pass of this name: the same for all passes, unless a method says otherwise."""
        return self.sites(run)

    def tap(self, run: RunFacts) -> Tap | None:
        """What a method with sites inside a denoiser measures its signal on; None for the denoiser's latents."""
        return None

    @property
    def stored_basis(self) -> Basis:
        """What is stored of an output: what the denoiser adds to its latent ("residual"), the "output" itself, or the "velocity".

        Of what flows inside a denoiser the output is stored in place of the velocity.
        """
        return "residual"

    def format(self, run: RunFacts) -> Format:
        """How a run's stores keep what they are given."""
        away = self.cache_device is not None and run.device.type != self.cache_device
        return format_of(self.cache_dtype, HostMemory() if away else None)

    @property
    def needs_influence(self) -> bool:
        """Whether the noise scheduler's steps are measured before a run (`RunFacts.influence`), which takes some milliseconds."""
        return bool(self.hindsight)

    @property
    def own_hindsight(self) -> bool | None:
        """What `hindsight` becomes where it is left open; None to leave it open."""
        return False

    @property
    def watch_bound(self) -> float | None:
        """The largest error of a prediction, as a fraction of the output, before ticks are computed (see `PredictionWatch`); None: any."""
        return None

    @property
    def per_sample(self) -> bool:
        """Whether each sample of a batch is decided by itself."""
        return False

    @property
    def each_branch(self) -> bool:
        """Whether each guidance pass is decided by itself, as in a schedule that names them, and not all by the leading one."""
        return False

    @property
    def counts_guidance(self) -> bool:
        """Whether what it chooses depends on the scale of guidance. Then it chooses again where a run's first step shows a scale that nothing has told."""
        return False

    @property
    def counts_amplification(self) -> bool:
        """Whether what it chooses depends on the amplification by guidance (see `Guidance`). Then it chooses again when a run's first step has shown that."""
        return False

    def guidance(self, run: RunFacts) -> GuidanceRule | None:
        """The site that is the unconditional pass; None to treat all passes alike."""
        return None

    @abstractmethod
    def scheduler(self, run: RunFacts) -> CacheScheduler:
        """When: a fresh cache scheduler for one run."""

    @abstractmethod
    def warmup(self, run: RunFacts) -> int:
        """Ticks of the warm-up where `warmup_steps` is None."""

    def tail(self, run: RunFacts) -> int:
        """Ticks at the end that are computed where `tail_steps` is None."""
        return 1

    def most_ticks(self, run: RunFacts) -> int | None:
        """How many ticks are computed at most in any run; None where nothing bounds them."""
        return None

    def remark(self, run: RunFacts) -> str | None:
        """What the report should say of this method in this run; None for nothing."""
        return None

    def predictor_for(self, run: RunFacts) -> Predictor:
        """How: the predictor of a reused tick."""
        return Hold()

    def corrects(self, run: RunFacts) -> bool:
        """Whether reused ticks are corrected (`hindsight`)."""
        return bool(self.hindsight)

    def token_rows(self, run: RunFacts) -> RowRule | None:
        """Which tokens the computed calls compute; None for all of them. For whole denoisers."""
        return None

    def for_call(self, call: Mapping[str, Any]) -> "CacheConfig":
        """The method as a pipeline's call with these arguments needs it."""
        return self

    def corrector(self, run: RunFacts) -> Corrector | None:
        """What corrects a predicted value; None for nothing."""
        return None

    def last_step(self, run: RunFacts) -> tuple[float | None, ...] | None:
        """Weights of the first sample and of each tick's velocity, None where it is reused, with which the sample after the last step is corrected; None for nothing."""
        return None

    def corrections(self, run: RunFacts) -> Mapping[str, Tensor]:
        """The coefficients that correct this run, as a schedule that does the same again has to hold them (see `Schedule.corrections`)."""
        return {}

    def repairs(self, site: str, quantization: str | None) -> Mapping[str, Repair]:
        """What is folded into layers of the denoiser of this name, quantised like this: gain and shift by the layer's path."""
        return {}

    def respaced(self, sigmas: list[float]) -> list[float] | None:
        """Other noise levels for a run's ticks, instead of the noise scheduler's; None to leave them."""
        return None

    def resolved(self) -> "CacheConfig":
        """What is attached for this config: itself, or what was calibrated for it.

        Raises:
            ScheduleError: its calibration cannot be read.
        """
        return self

    def guards(self, run: RunFacts) -> Guards:
        warmup = self.warmup(run) if self.warmup_steps is None else self.warmup_steps
        tail = self.tail(run) if self.tail_steps is None else self.tail_steps
        return Guards(warmup, tail, self.max_consecutive_reuses)
