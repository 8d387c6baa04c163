"""Search spaces: recorded from a tiny pipeline, and made up."""

from typing import Any

from support.searches.flux_calls import FLUX, flux_calls
from support.searches.recordings import curve_of
from torch import Tensor

from diffcache.profiling.recording.record import record
from diffcache.profiling.recording.recording import RecordedSite, Recording
from diffcache.profiling.searching.space import HOLD, Space

STEPS = 6


def calls() -> list[dict[str, Any]]:
    return flux_calls(STEPS, 1)


def recorded_space(sites: str = "model") -> tuple[Any, Space]:
    """A pipeline, and the space of its sites."""
    pipe = FLUX.build()
    return pipe, Space(record(pipe, calls(), sites=sites))


def made_up_space(drift: Tensor, predictor: Any = HOLD, **options: Any) -> Space:
    """A space of one site with these drifts, [tick, earlier tick]."""
    curves = {("net", "0"): curve_of(drift)}
    sites = {"net": RecordedSite("model", 100.0)}
    return Space(Recording({}, None, None, curves, sites=sites), predictor, **options)
