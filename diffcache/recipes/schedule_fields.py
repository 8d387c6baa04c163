"""Which values of a schedule's fields can be replayed."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, get_args

from diffcache.config import GUIDANCE
from diffcache.prediction.descriptions import predictor_from
from diffcache.schedulers.errors import ScheduleError
from diffcache.schedulers.numbers_given import is_number
from diffcache.schedulers.schedule import GUIDANCE_OPTIONS, GUIDANCE_SCALE, INFLUENCE, Schedule
from diffcache.store.streams import Basis

RESPACED = "sigmas"
"""Name of a schedule's own noise levels among its corrections."""

LAST_STEP = "last_step"
"""Name of the weights of its last step's correction among them, float32 [1 + ticks] (see `CacheConfig.last_step`)."""


def check_fields(schedule: Schedule) -> None:
    """Refuses a schedule with a value that cannot be replayed.

    Raises:
        ScheduleError: the message names the field.
    """
    predictor = schedule.predictor
    predictor_from(predictor)
    rebuilt = any(site.endswith(f".{GUIDANCE}") for site in schedule.table)
    if rebuilt and not _is_boosts(predictor.get("guidance")):
        raise ScheduleError("predictor.guidance: must hold three numbers each for low and high.")
    basis = predictor.get("basis", "residual")
    if basis not in get_args(Basis):
        raise ScheduleError(f"predictor.basis: must be {', '.join(get_args(Basis))}, not {basis!r}.")
    if not isinstance(predictor.get("hindsight", False), bool):
        raise ScheduleError("predictor.hindsight: must be true or false.")
    scale = predictor.get(GUIDANCE_SCALE)
    if scale is not None and not is_number(scale):
        raise ScheduleError(f"predictor.{GUIDANCE_SCALE}: must be a finite number, not {scale!r}.")
    options = predictor.get(GUIDANCE_OPTIONS, {})
    if not isinstance(options, Mapping) or not all(map(is_number, options.values())):
        raise ScheduleError(f"predictor.{GUIDANCE_OPTIONS}: must hold a finite number for each option.")
    influence = predictor.get(INFLUENCE)
    if influence is not None and not _are_numbers(influence, schedule.num_ticks):
        raise ScheduleError(f"predictor.{INFLUENCE}: must hold a finite number for each tick.")
    levels = schedule.corrections.get(RESPACED)
    if levels is not None and any(a < b for a, b in pairwise(levels.flatten().tolist())):
        raise ScheduleError(f"corrections.{RESPACED}: noise levels must not rise during a run.")
    weights = schedule.corrections.get(LAST_STEP)
    if weights is not None and not (
        weights.shape == (1 + schedule.num_ticks,) and weights.is_floating_point()
    ):
        raise ScheduleError(
            f"corrections.{LAST_STEP}: must hold fractions, one more than the run has ticks: tune again."
        )
    unknown = [site for site in schedule.table if site.split(".")[0] not in schedule.models]
    if unknown:
        raise ScheduleError(f"table.{unknown[0]}: there is no model of that name in the schedule.")


def _is_boosts(data: Any) -> bool:
    numbers = [data.get(name) for name in ("low", "high")] if isinstance(data, Mapping) else []
    return bool(numbers) and all(_are_numbers(three, 3) for three in numbers)


def _are_numbers(values: Any, count: int) -> bool:
    return isinstance(values, list) and len(values) == count and all(map(is_number, values))
