"""TeaCache (arXiv 2411.19108): reuse the stack while the rescaled change of its modulated input adds up to little."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from diffcache.config import CacheConfig, RunFacts
from diffcache.discovery.site_names import ranges_of
from diffcache.discovery.taps import Tap
from diffcache.method_config import method
from diffcache.schedulers.accumulator import Accumulator
from diffcache.schedulers.signals import Drift


class Published(NamedTuple):
    """Threshold, what is measured, the polynomial's coefficients, highest power first, and the list of blocks that is reused; "": all."""

    threshold: float
    tap: Tap
    coefficients: tuple[float, ...]
    blocks: str = ""


MODULATED = Tap(inside="norm1")
"""The first block's input, normalised and modulated by the time embedding."""

PUBLISHED = {
    "FluxTransformer2DModel": Published(
        0.4, MODULATED, (498.651651, -283.781631, 55.8554382, -3.82021401, 0.264230861)
    ),
    "HunyuanVideoTransformer3DModel": Published(
        0.1, MODULATED, (733.226126, -401.131952, 67.5869174, -3.149878, 0.0961237896)
    ),
    "MochiTransformer3DModel": Published(
        0.06, MODULATED, (-3512.41319, 811.675948, -60.9400215, 2.42429681, 0.00305291719)
    ),
    "Lumina2Transformer2DModel": Published(
        0.3,
        Tap("layers.0", inside="norm1"),
        (393.76566581, -603.50993606, 209.10239044, -23.00726601, 0.86377344),
        "layers",  # the refiners before them always run
    ),
    "CogVideoXTransformer3DModel": Published(
        0.1, Tap("time_embedding"), (-1538.80483, 843.202495, -134.363087, 7.97131516, -0.0523162339)
    ),
    "ConsisIDTransformer3DModel": Published(
        0.1, Tap("time_embedding"), (-1538.80483, 843.202495, -134.363087, 7.97131516, -0.0523162339)
    ),
}
"""By denoiser, from the authors' scripts."""

GENERAL = Published(0.1, Tap(of="input"), ())
"""Elsewhere: the change of the first block's input, as it is."""


@method
@dataclass(frozen=True, kw_only=True)
class TeaCacheConfig(CacheConfig):
    """Where: the stack, as one residual for each stream. When: an accumulator. How: hold.

    E grows at each tick by f(mean|m_s - m_{s-1}| / mean|m_{s-1}|), where m is the first block's modulated input (Flux,
    HunyuanVideo, Mochi; in Lumina 2 that of the first layer behind the refiners, which always run), the time embedding
    (CogVideoX, ConsisID), or elsewhere the first block's input, and f a polynomial fitted for the model (elsewhere the
    identity). First and last tick are computed. The leading guidance pass decides for all. CogVideoX's polynomial is that of
    the 5B model: for 2B and 1.5 the authors have others, and for Wan, LTX, HiDream and Cosmos some that are not here. For
    Mochi they also keep what its last norm adds.

    Attributes:
        threshold: bound on E; 0 computes everything. None: a published one, which gives about 1.8x on Flux and 1.6x on
            HunyuanVideo; 0.1 elsewhere.
        coefficients: of f, highest power first. None: as published.
        warmup_steps: None: 1, as published.
    """

    name: ClassVar[str] = "teacache"

    threshold: float | None = None
    coefficients: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("threshold", 0)
        self._check_numbers("coefficients")

    def sites(self, run: RunFacts) -> tuple[str, ...]:
        blocks = PUBLISHED.get(run.denoiser_class, GENERAL).blocks
        count = run.blocks.get(blocks)
        return ("stack",) if count is None else tuple(ranges_of(blocks, range(count)))

    def tap(self, run: RunFacts) -> Tap:
        return PUBLISHED.get(run.denoiser_class, GENERAL).tap

    def scheduler(self, run: RunFacts) -> Accumulator:
        published = PUBLISHED.get(run.denoiser_class, GENERAL)
        coefficients = published.coefficients if self.coefficients is None else self.coefficients
        threshold = published.threshold if self.threshold is None else self.threshold
        return Accumulator(Drift("previous", coefficients), threshold)

    def warmup(self, run: RunFacts) -> int:
        return 1
