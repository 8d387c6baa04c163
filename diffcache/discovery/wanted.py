"""What a first call is to find, and which recorded calls may belong to that."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from diffcache.discovery.site_names import GROUPS, may_be_bare, range_of_stack
from diffcache.discovery.sites import Site
from diffcache.discovery.taps import Tap
from diffcache.discovery.unit_recorder import UnitCall
from diffcache.discovery.units import is_attention_or_projection, is_sub_layer


@dataclass(frozen=True)
class Request:
    """What is looked for in a first call.

    Attributes:
        names: of the sites to cache (see `site_names`).
        tap: what signals are measured on; None for the denoiser's latents.
        reuses_memory: a later call may write to what a unit returned (see `holds_compiled`).
        traces_all: no block is taken to do what those before it did (see `twins`).
    """

    names: Sequence[str]
    tap: Tap | None
    reuses_memory: bool = False
    traces_all: bool = False


class Wanted:
    """Which units matter for the sites of some names.

    Args:
        names: of the sites (see `site_names`).
        bare: paths of the parts of blocks that have a bare feed-forward.

    Attributes:
        bare: these paths, if one of the names may mean such a site.
        ranges: the names of ranges of blocks.
        last_parts: names of units with which a named range of a block's parts ends.
        depth: number of the UNet's depth that is a site; 0 if none is.
        names_one: one of the names is that of a part of one block.
    """

    def __init__(self, names: Sequence[str], bare: Collection[str]) -> None:
        self.bare = bare if may_be_bare(names) else ()
        named = [name for name in names if ".." in name and range_of_stack(name) is None]
        self.ranges = [name for name in names if name == "stack" or range_of_stack(name) is not None] + named
        self.last_parts = {name.split("..", 1)[1] for name in named}
        numbers = [name.removeprefix("depth ") for name in names if name.startswith("depth ")]
        self.depth = max((int(number) for number in numbers if number.isdigit()), default=0)
        self.names_one = any("." in name and range_of_stack(name) is None for name in names)
        self._names = names
        self._kinds = {kind for name in names for kind in GROUPS.get(name, (name,))}

    def site(self, site: Site) -> bool:
        """Whether a site is named, by its kind or by its name."""
        return site.kind in self._kinds or site.name in self._names

    def block(self, unit: UnitCall) -> bool:
        """Whether the unit is a block that is a site."""
        is_block = unit.depth == 0 and unit.is_in_list
        return is_block and ("block" in self._names or unit.name in self._names)

    def sub_layer(self, unit: UnitCall) -> bool:
        """Whether the unit, which has returned, is a sub-layer that is a site."""
        if unit.depth == 0 or not is_sub_layer(unit.module):
            return False
        return unit.kind in self._kinds or unit.name in self._names

    def part_of_span(self, unit: UnitCall) -> bool:
        """Whether the unit may belong to a site of several units."""
        if self.depth or self.last_parts:
            return True
        return bool(self.ranges) if unit.depth == 0 else unit.path in self.bare

    def end_of_bare(self, unit: UnitCall) -> bool:
        """Whether a site with a bare feed-forward may end with the unit."""
        return unit.depth == 1 and unit.path in self.bare and is_attention_or_projection(unit.module)
