"""Places: how a method names the sites that it caches.

"model"              the whole denoiser
"stack"              everything from the first block to the last
"stack[1..]"         the blocks from the second on, by their position in the stack; also "stack[3..7]", "stack[0]"
"blocks.3..blocks.7" the blocks from one to another, by name
"block", "self-attention", "cross-attention", "joint-attention", "feed-forward", "parallel"
                     every site of that kind
"attention", "sub-layer"
                     every attention; every attention, feed-forward and parallel site
"depth 1"            a UNet below its outermost layers
"blocks.3.attn1"     a site by its name
"""

import re
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from diffcache.discovery.site_finder import Survey
from diffcache.discovery.sites import Site
from diffcache.discovery.units import bare_parts_of_blocks, blocks_of, layers_of_blocks, sub_layers_of_blocks
from diffcache.schedulers.errors import TargetError
from diffcache.schedulers.steps import MODEL

SUB_LAYERS = ("self-attention", "cross-attention", "joint-attention", "feed-forward", "parallel")
GROUPS = {"sub-layer": SUB_LAYERS, "attention": SUB_LAYERS[:3]}
FIRST_BLOCK = "stack[0]"

_POSITIONS = re.compile(r"stack\[(\d+)(\.\.(\d*))?\]")


def is_inside(places: Sequence[str]) -> bool:
    """Whether these are sites inside the denoiser."""
    return tuple(places) != (MODEL,)


def units_for(denoiser: nn.Module, places: Sequence[str]) -> dict[str, nn.Module]:
    """The modules whose calls must be seen to cache at these places, by path."""
    units = blocks_of(denoiser)
    if any(place.startswith("depth ") for place in places):
        units |= layers_of_blocks(denoiser)
    if any(_is_sub_layer(place, units) for place in places):
        units |= sub_layers_of_blocks(denoiser)
        units |= bare_parts_of_blocks(denoiser) if may_be_bare(places) else {}
    return units


def may_be_bare(places: Sequence[str]) -> bool:
    """Whether feed-forwards that are bare projections may be among these places."""
    kinds = {kind for place in places for kind in GROUPS.get(place, (place,))}
    return bool(kinds & {"parallel", "feed-forward"}) or any(".." in place for place in places)


def positions(place: str) -> tuple[int, int | None] | None:
    """First and last position in the stack (None: its end) of a place that is given by them, else None."""
    found = _POSITIONS.fullmatch(place)
    if found is None:
        return None
    first, many, last = int(found[1]), found[2], found[3]
    return first, (int(last) if last else None) if many else first


def sites_at(places: Sequence[str], survey: Survey) -> tuple[Site, ...]:
    """The sites at these places.

    Raises:
        TargetError: one that cannot be cached, with its reason; or two that overlap.
    """
    sites = [site for place in places for site in _sites(place, survey)]
    sites.sort(key=survey.extent)
    for before, after in pairwise(sites):
        if survey.extent(after)[0] < survey.extent(before)[1]:
            raise TargetError(f"the places {before.name!r} and {after.name!r} overlap: name one of them.")
    return tuple(sites)


def _sites(place: str, survey: Survey) -> list[Site]:
    at = positions(place)
    if at is not None:
        found = [survey.range_of_stack(*at)]
    elif ".." in place:
        found = [survey.range(*place.split("..", 1))]
    else:
        kinds = GROUPS.get(place, (place,))
        found = _outermost([site for site in survey.table() if site.kind in kinds or site.name == place])
    usable = [site for site in found if site is not None and site.reason is None]
    if usable:
        return usable
    kinds = tuple(dict.fromkeys(site.kind for site in survey.table()))
    why = next((site.reason for site in found if site is not None), f"it has none: {', '.join(kinds)}")
    raise TargetError(
        f"{survey.denoiser} cannot be cached at {place!r}: {why}; choose another place or method."
    )


def _outermost(sites: Sequence[Site]) -> list[Site | None]:
    """Without the attentions that a parallel site which can be cached spans."""
    joined = [site for site in sites if site.kind == "parallel" and site.reason is None]
    inner = {name for site in joined for name in site.units}
    return [site for site in sites if site.kind == "parallel" or site.name not in inner]


def _is_sub_layer(place: str, units: dict[str, nn.Module]) -> bool:
    """Whether it is one by kind, or by a name that is none of the blocks'."""
    by_name = positions(place) is None and "." in place
    return (
        place in SUB_LAYERS
        or place in GROUPS
        or (by_name and place.split("..")[0].split("#")[0] not in units)
    )
