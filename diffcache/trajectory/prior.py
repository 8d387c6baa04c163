"""What is known of every denoiser before it is run: shipped as one file, with how it was measured."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from diffcache.trajectory.by_noise_level import ByNoiseLevel
from diffcache.trajectory.kernel import UniversalKernel
from diffcache.trajectory.response import UniversalResponse

SHIPPED = Path(__file__).with_name("prior.json")


class Prior(NamedTuple):
    """What denoisers have in common.

    Attributes:
        kernel: the covariance of their velocities.
        pace: how much velocities change from one tick to the next, over what the kernel says of that. One kernel fits long
            distances of many denoisers; short ones differ with the noise level and with guidance.
        response: of their velocities to errors of the sample.
    """

    kernel: UniversalKernel
    pace: ByNoiseLevel
    response: UniversalResponse

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Prior":
        """Of the figures in a file."""
        return cls(
            UniversalKernel.from_dict(data["kernel"]),
            ByNoiseLevel.from_dict(data["pace"]),
            UniversalResponse.from_dict(data["response"]),
        )


@cache
def universal() -> Prior:
    """The prior that is shipped."""
    return Prior.from_dict(json.loads(SHIPPED.read_text()))
