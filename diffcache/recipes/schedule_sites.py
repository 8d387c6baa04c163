"""The sites of a schedule, and whether a denoiser has them."""

from torch import nn

from diffcache.config import GUIDANCE
from diffcache.discovery.missing_sites import missing_site
from diffcache.discovery.site_names import is_inside
from diffcache.schedulers.errors import ScheduleError
from diffcache.schedulers.schedule import NOT_CALLED, Schedule
from diffcache.schedulers.steps import MODEL, Decision


def sites_of(schedule: Schedule, denoiser: str) -> tuple[str, ...]:
    """Where a schedule caches the denoiser of this name."""
    start = f"{denoiser}."
    inside = [site.removeprefix(start) for site in schedule.table if site.startswith(start)]
    return tuple(site for site in inside if site != GUIDANCE) or (MODEL,)


def check_sites(schedule: Schedule, name: str, denoiser: nn.Module) -> None:
    """Refuses a table that reuses a whole denoiser, of this name, and has sites inside it as well, or has sites that the denoiser lacks.

    Raises:
        ScheduleError: it is such a table.
    """
    sites = sites_of(schedule, name)
    if not is_inside(sites):
        return
    reused = set("".join(schedule.table.get(name, {}).values())) - {NOT_CALLED, Decision.COMPUTE.value}
    if reused:
        raise ScheduleError(
            f"table.{name}: the whole denoiser overlaps its site {sites[0]!r}: leave one of them out."
        )
    missing = missing_site(denoiser, sites)
    if missing is not None:
        raise ScheduleError(f"table.{name}.{missing}: {type(denoiser).__name__} has no such site.")
