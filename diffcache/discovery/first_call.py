"""The first call of a guidance pass: it is computed in full, recorded to find the sites, and kept like any other (`keeping_recorder`)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic

from torch import Tensor, nn

from diffcache.discovery.candidates import Keeper, KeptT
from diffcache.discovery.cuts import Cuts
from diffcache.discovery.keeping_recorder import KeepingRecorder
from diffcache.discovery.repeats import Unlike
from diffcache.discovery.site_finder import SiteFinder
from diffcache.discovery.site_names import FIRST_BLOCK, may_be_bare, sites_named, units_for
from diffcache.discovery.units import bare_parts_of_blocks
from diffcache.discovery.wanted import Request, Wanted
from diffcache.host.call import Call


@dataclass(frozen=True)
class FirstCall(Generic[KeptT]):
    """What a first call gave.

    Attributes:
        output: the denoiser's.
        cuts: where it can be cut.
        seen: what the tap measured; None without a tap.
        kept: what was kept of each site. A site is missing if its arguments were overwritten before it was known.
    """

    output: Any
    cuts: Cuts
    seen: list[Tensor] | None
    kept: Mapping[str, KeptT]


def compute_first_call(
    denoiser: nn.Module, forward: Callable[..., Any], call: Call, request: Request, keeper: Keeper[KeptT]
) -> FirstCall[KeptT]:
    """Computes a denoiser call in full, finds its sites, and keeps what they returned.

    Where a block does otherwise than those that it was taken to be like, the call is computed once more.

    Args:
        denoiser: the denoiser, whose units' classes are swapped.
        forward: its plain forward.
        call: the arguments.
        request: what is looked for.
        keeper: keeps what may be a site.

    Raises:
        TargetError: the denoiser cannot be cached at one of these sites.
    """
    try:
        return _first_call(denoiser, forward, call, request, keeper)
    except Unlike:
        return _first_call(denoiser, forward, call, replace(request, traces_all=True), keeper)


def _first_call(
    denoiser: nn.Module, forward: Callable[..., Any], call: Call, request: Request, keeper: Keeper[KeptT]
) -> FirstCall[KeptT]:
    """`first_call`; raises `Unlike` where a block was taken to be like another and is not."""
    bare = bare_parts_of_blocks(denoiser) if may_be_bare(request.names) else {}
    units = units_for(denoiser, request.names, bare)
    recorder = KeepingRecorder(units, call, request, Wanted(request.names, bare), keeper)
    try:
        output = recorder.record(lambda: forward(*call.args, **call.kwargs))
        finder = SiteFinder(denoiser, recorder.calls, recorder.trace, output, bare)
        sites = sites_named(request.names, finder)
        kept = recorder.kept_of(sites)
        keeper.waiting(lambda: 0)
    finally:
        recorder.forget()  # a traceback that somebody keeps would keep this object alive
    tap, tapped = request.tap, ""
    if tap is not None:
        tapped = finder.stack[0].name if tap.unit == FIRST_BLOCK else tap.unit
    named = {name.split("#")[0] for name in (tapped, *(name for site in sites for name in site.units))}
    paths = {id(module): path for path, module in units.items() if path in named}
    placeholders = {name: recorder.placeholders[name] for site in sites for name in site.units[:-1]}
    calls = tuple(call.name for call in recorder.calls)
    seen, changed = (None, None) if recorder.tapped is None else recorder.tapped.chosen
    cuts = Cuts(sites, placeholders, paths, tapped, request.reuses_memory, recorder.watches, calls, changed)
    return FirstCall(output, cuts, seen, kept)
