"""Real calls of a denoiser, recorded without their content, to stand in for others of the same form."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from diffcache.discovery.cuts import Cuts
from diffcache.discovery.first_call import compute_first_call
from diffcache.discovery.taps import Tap
from diffcache.engine.execution import Invocation
from diffcache.host.call import Call


@dataclass(frozen=True)
class RecordedCall:
    """One real call. Its tensors are on the meta device: shapes without content.

    Attributes:
        call: its arguments.
        output: what it returned.
        devices: of the output's tensors, in order.
        writes: it wrote into its arguments.
        cuts: where the denoiser can be cut; None where nobody asked.
        parts: of each site, the call of its first unit and what its last one returned.
        seen: what the method's tap gave.
    """

    call: Call
    output: Any
    devices: tuple[torch.device, ...]
    writes: bool
    cuts: Cuts | None
    parts: Mapping[str, tuple[Call, Any]]
    seen: Sequence[Tensor]

    def again(self, *args: Any, **kwargs: Any) -> Any:
        """Stands in for the denoiser's forward, without content."""
        if self.writes:
            self.call.latents[0].zero_()
        return self.output

    def blank(self) -> Any:
        """Zeros, with which the loop goes on."""
        devices = iter(self.devices)
        return pytree.tree_map_only(Tensor, lambda t: torch.zeros_like(t, device=next(devices)), self.output)


class RecordedCalls:
    """The real calls of one dry run: one for each form of call, and inside a denoiser for each guidance pass too."""

    def __init__(self) -> None:
        self._known: dict[Any, RecordedCall] = {}

    def whole(self, name: str, asked: Invocation) -> RecordedCall:
        """That of a whole denoiser of this name; it is computed if there was none of its form."""
        key = (name, asked.call.fingerprint(asked.module))
        if key not in self._known:
            self._known[key] = _recorded(
                asked.call, lambda keep: (asked.forward(*asked.call.args, **asked.call.kwargs), None, None)
            )
        return self._known[key]

    def inside(
        self, name: str, branch: str, asked: Invocation, sites: Sequence[str], tap: Tap | None
    ) -> RecordedCall:
        """That of a denoiser that is cut at these sites. Lengths inside may depend on what a guidance pass masks out."""
        key = (name, branch, asked.call.fingerprint(asked.module))
        if key not in self._known:
            self._known[key] = _recorded(
                asked.call,
                lambda keep: compute_first_call(asked.module, asked.forward, asked.call, sites, tap, keep),
            )
        return self._known[key]


def _recorded(call: Call, run: Callable[[Any], tuple[Any, Cuts | None, list[Tensor] | None]]) -> RecordedCall:
    parts: dict[str, tuple[Call, Any]] = {}

    def keep(site: str, kind: str, first: Call, output: Any, continues: Mapping[int, str]) -> None:
        parts[site] = _without_content(first, output)

    before = call.state()
    output, cuts, seen = run(keep)
    blank_call, blank_output = _without_content(call, output)
    return RecordedCall(
        call=blank_call,
        output=blank_output,
        devices=tuple(leaf.device for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)),
        writes=call.state() != before,
        cuts=cuts,
        parts=parts,
        seen=blank_call.latents if seen is None else [tensor.to("meta") for tensor in seen],
    )


def _without_content(call: Call, output: Any) -> tuple[Call, Any]:
    """A call and its output on the meta device; what was one tensor in both still is."""
    known: dict[int, Tensor] = {}

    def meta(tensor: Tensor) -> Tensor:
        return known.setdefault(id(tensor), tensor.detach().to("meta"))

    return call.mapped(meta), pytree.tree_map_only(Tensor, meta, output)
