"""Which of a method's site names mean nothing in a denoiser: as far as its modules tell, without a call."""

import re
from collections.abc import Mapping, Sequence

from torch import nn

from diffcache.discovery.site_names import GROUPS, SUB_LAYERS, range_of_stack, units_for
from diffcache.discovery.units import (
    bare_parts_of_blocks,
    block_counts,
    blocks_of,
    is_attention,
    is_feed_forward,
    is_list_member,
    is_sub_layer,
    sub_layers_of_blocks,
)
from diffcache.schedulers.steps import MODEL

_DEPTH = re.compile(r"depth [1-9]\d*")
_BESIDE_ATTENTION = ("feed-forward", "parallel")


def missing_site(denoiser: nn.Module, names: Sequence[str]) -> str | None:
    """The first of these names that means no site of the denoiser; None where each may mean one.

    Only a call tells what a denoiser does with its modules, so a name that passes may still have no site.
    """
    units = units_for(denoiser, names)
    return next((name for name in names if not _may_exist(name, denoiser, units)), None)


def names_of_sites(denoiser: nn.Module) -> str:
    """The names that may mean sites of a denoiser, for an error's sentence."""
    kinds = ("stack", "block", "attention", *_BESIDE_ATTENTION)
    known = [MODEL, *(kind for kind in kinds if _may_exist(kind, denoiser, units_for(denoiser, (kind,))))]
    lists: dict[str, list[str]] = {}
    for path in filter(is_list_member, blocks_of(denoiser)):
        lists.setdefault(path.rpartition(".")[0], []).append(path)
    ends = [dict.fromkeys((paths[0], paths[-1])) for paths in lists.values()]
    return ", ".join([*known, *map(" to ".join, ends)])


def _may_exist(name: str, denoiser: nn.Module, units: Mapping[str, nn.Module]) -> bool:
    """Whether a name may mean a site. `units` are those for it, by path."""
    if name == MODEL:
        return True
    if name in ("stack", "block") or range_of_stack(name) is not None or _DEPTH.fullmatch(name):
        return bool(block_counts(denoiser))
    if name in SUB_LAYERS or name in GROUPS:
        return _has_kind(name, denoiser)
    paths = [end.split("#")[0] for end in name.split("..")]
    if len(paths) > 1:
        return all(path in units for path in paths)
    return paths[0] in units and (is_list_member(paths[0]) or is_sub_layer(units[paths[0]]))


def _has_kind(name: str, denoiser: nn.Module) -> bool:
    """Whether the denoiser has sub-layers that may be of a kind, or of one of a group's kinds."""
    kinds, layers = GROUPS.get(name, (name,)), sub_layers_of_blocks(denoiser).values()
    attends = any(map(is_attention, layers)) and any("attention" in kind for kind in kinds)
    if attends or not set(_BESIDE_ATTENTION) & set(kinds):
        return attends
    feeds = "feed-forward" in kinds and any(map(is_feed_forward, layers))
    return feeds or bool(bare_parts_of_blocks(denoiser))
