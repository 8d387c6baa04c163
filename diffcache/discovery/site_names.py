"""Site names: how a method names the sites that it caches.

"model"              the whole denoiser
"stack"              everything from the first block to the last
"stack[1..]"         the blocks from the second on, by index in the stack; also "stack[3..7]", "stack[0]"
"blocks.3..blocks.7" the blocks from one to another, by path
"block", "self-attention", "cross-attention", "joint-attention", "feed-forward", "parallel"
                     every site of that kind
"attention", "sub-layer"
                     every attention; every attention, feed-forward and parallel site
"depth 1"            a UNet below its outermost layers
"blocks.3.attn1"     one site, by its own name
"""

import re
from collections.abc import Sequence
from itertools import groupby, pairwise
from operator import itemgetter

from torch import nn

from diffcache.discovery.site_finder import SiteFinder
from diffcache.discovery.sites import Site
from diffcache.discovery.units import bare_parts_of_blocks, blocks_of, layers_of_blocks, sub_layers_of_blocks
from diffcache.schedulers.errors import TargetError
from diffcache.schedulers.steps import MODEL

SUB_LAYERS = ("self-attention", "cross-attention", "joint-attention", "feed-forward", "parallel")
GROUPS = {"sub-layer": SUB_LAYERS, "attention": SUB_LAYERS[:3]}
FIRST_BLOCK = "stack[0]"

_STACK_RANGE = re.compile(r"stack\[(\d+)(\.\.(\d*))?\]")


def is_inside(names: Sequence[str]) -> bool:
    """Whether these are sites inside the denoiser, not the whole denoiser."""
    return tuple(names) != (MODEL,)


def ranges_of(name: str, members: Sequence[int]) -> list[str]:
    """Some members of a list of blocks as sites: one for each stretch without a gap."""
    found = []
    for _, group in groupby(enumerate(members), key=lambda pair: pair[1] - pair[0]):
        indices = [index for _, index in group]
        first, last = f"{name}.{indices[0]}", f"{name}.{indices[-1]}"
        found.append(first if first == last else f"{first}..{last}")
    return found


def units_for(
    denoiser: nn.Module, names: Sequence[str], bare: dict[str, nn.Module] | None = None
) -> dict[str, nn.Module]:
    """The modules whose calls must be watched to cache the sites of these names, by path.

    Args:
        denoiser: the denoiser.
        names: of the sites.
        bare: its `bare_parts_of_blocks`, if they are known and may be among the sites.
    """
    units = blocks_of(denoiser)
    if any(name.startswith("depth ") for name in names):
        units |= layers_of_blocks(denoiser)
    if any(_is_sub_layer(name, units) for name in names):
        units |= sub_layers_of_blocks(denoiser)
        if bare is None and may_be_bare(names):
            bare = bare_parts_of_blocks(denoiser)
        units |= bare or {}
    return units


def may_be_bare(names: Sequence[str]) -> bool:
    """Whether these names may mean feed-forwards that are bare projections (see `bare_parts_of_blocks`)."""
    kinds = {kind for name in names for kind in GROUPS.get(name, (name,))}
    return bool(kinds & {"parallel", "feed-forward"}) or any(".." in name for name in names)


def range_of_stack(name: str) -> tuple[int, int | None] | None:
    """First and last index of a name like "stack[3..7]"; the last is None for "stack[3..]". None for any other name."""
    found = _STACK_RANGE.fullmatch(name)
    if found is None:
        return None
    first, is_range, last = int(found[1]), found[2], found[3]
    return first, (int(last) if last else None) if is_range else first


def sites_named(names: Sequence[str], finder: SiteFinder) -> tuple[Site, ...]:
    """The sites of these names, in the order in which the forward reaches them.

    Of several modules those that were not called are left out: skip-layer guidance leaves out blocks in one of its passes.

    Raises:
        TargetError: a name means no site that can be cached (the message has the reason), or two sites overlap.
    """
    called = [name for name in names if _may_be_called(name, finder)] or names[:1]
    found = [(finder.extent(site), site) for name in called for site in _sites_of(name, finder)]
    found.sort(key=itemgetter(0))
    for ((_, end), before), ((begin, _), after) in pairwise(found):
        if begin < end:
            raise TargetError(f"the sites {before.name!r} and {after.name!r} overlap: name one of them.")
    return tuple(site for _, site in found)


def _sites_of(name: str, finder: SiteFinder) -> list[Site]:
    indices = range_of_stack(name)
    found: list[Site | None]
    if indices is not None:
        found = [finder.range_of_stack(*indices)]
    elif ".." in name:
        found = [finder.range(*name.split("..", 1))]
    else:
        kinds = GROUPS.get(name, (name,))
        found = [*_outermost(finder.of(kinds, name))]
    usable = [site for site in found if site is not None and site.reason is None]
    if usable:
        return usable
    why = next((site.reason for site in found if site is not None), None) or _instead(name, finder)
    raise TargetError(f"{finder.name} cannot be cached at {name!r}: {why}; choose another site or method.")


def _instead(name: str, finder: SiteFinder) -> str:
    """What the denoiser has instead of a site of this name, for an error's sentence."""
    if range_of_stack(name) is not None:
        return f"its stack has blocks 0 to {len(finder.stack) - 1}"
    depths = [site.name for site in finder.table if site.kind == "depth"]
    if name.startswith("depth ") and depths:
        return f"it has {depths[0]} to {depths[-1]}"
    return f"it has none, only {', '.join(dict.fromkeys(site.kind for site in finder.table))}"


def _may_be_called(name: str, finder: SiteFinder) -> bool:
    """Whether the forward may have called a site of this name: of a module it is known."""
    is_module = "." in name and ".." not in name
    return not is_module or finder.has_called(name.split("#")[0])


def _outermost(sites: Sequence[Site]) -> list[Site]:
    """The sites, without attentions that lie inside a parallel site which can be cached."""
    joined = [site for site in sites if site.kind == "parallel" and site.reason is None]
    inner = {name for site in joined for name in site.units}
    return [site for site in sites if site.kind == "parallel" or site.name not in inner]


def _is_sub_layer(name: str, units: dict[str, nn.Module]) -> bool:
    """Whether a name means sub-layers: by kind, or by a path that is none of the `units`, which are blocks."""
    is_path = range_of_stack(name) is None and "." in name
    return (
        name in SUB_LAYERS or name in GROUPS or (is_path and name.split("..")[0].split("#")[0] not in units)
    )
