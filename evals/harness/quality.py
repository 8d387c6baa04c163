"""How good pictures are: close to the full run's and to a finer run's, and like real ones."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from diffcache.evals.metrics.distribution import kid
from diffcache.evals.metrics.extractors import CLASSIFIER, Extractor
from diffcache.evals.metrics.fidelity import psnr, ssim
from diffcache.evals.testbeds import procedural
from diffcache.profiling.recording.pictures import median_of

REFERENCE_STEPS = 1000
REAL = 1000
"""Pictures, or frames of clips, that KID compares with."""

Distance = Callable[[Tensor], float]
"""Of pictures [N, 3, H, W], or videos [N, F, 3, H, W], in 0..1 to real ones."""


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Figures of some pictures; PSNR in dB and SSIM are medians over the samples.

    Attributes:
        psnr_full, ssim_full: to the full run's pictures.
        psnr_reference: to the pictures of 1000 steps; None where they were not rendered.
        kid: distance of all pictures to real ones; None where it was not measured.
    """

    psnr_full: float
    ssim_full: float
    psnr_reference: float | None
    kid: float | None = None


@dataclass(frozen=True)
class References:
    """What pictures are compared with.

    Attributes:
        full: pictures of the full run, [N, ...] in 0..1.
        reference: pictures of the same call with 1000 steps, or None.
        distance: to real pictures, or None.
    """

    full: Tensor
    reference: Tensor | None = None
    distance: Distance | None = None

    def quality(self, pictures: Tensor) -> Quality:
        """The figures of pictures with the full run's prompts and seeds."""
        return Quality(
            psnr_full=_median(psnr(pictures, self.full)),
            ssim_full=_median(ssim(pictures, self.full)),
            psnr_reference=None if self.reference is None else _median(psnr(pictures, self.reference)),
            kid=None if self.distance is None else round(self.distance(pictures), 5),
        )


def kid_to_real(testbed: str) -> Distance:
    """KID to pictures (for wan: frames of clips) that a testbed was trained to draw, on their classifier's features.

    Full runs of the same seeds would not do as the reference: KID is an estimate for two independent sets, and falls
    below zero where each picture has its twin.
    """
    extractor = Extractor(CLASSIFIER)
    real = extractor(_drawn(testbed)).features
    return lambda pictures: kid(extractor(pictures).features, real)


def _drawn(testbed: str) -> Tensor:
    if testbed != "wan":
        return procedural.pictures(REAL, seed=1).pixels
    return procedural.clips(REAL // 8, seed=1).pixels.movedim(2, 1)


def _median(values: Tensor) -> float:
    return round(median_of(values), 4)
