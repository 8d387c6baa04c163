"""What is known of every denoiser before it is run: shipped as one file, with how it was measured."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from diffcache.trajectory.kernel import Kernel
from diffcache.trajectory.sensitivity import Sensitivity

SHIPPED = Path(__file__).with_name("prior.json")


class Prior(NamedTuple):
    """What denoisers have in common.

    Attributes:
        kernel: the covariance of their velocities.
        sensitivity: of their results.
    """

    kernel: Kernel
    sensitivity: Sensitivity

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Prior":
        """Of the figures in a file."""
        return cls(Kernel.from_dict(data["kernel"]), Sensitivity.from_dict(data["sensitivity"]))


@cache
def universal() -> Prior:
    """The prior that is shipped."""
    return Prior.from_dict(json.loads(SHIPPED.read_text()))
