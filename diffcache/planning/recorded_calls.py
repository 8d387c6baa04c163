"""Takes: what one real call of a denoiser showed, so that others like it can be gone through without computing them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from diffcache.discovery.cuts import Anatomy
from diffcache.discovery.first_call import learn
from diffcache.discovery.taps import Tap
from diffcache.host.call import Call

Forward = Callable[..., Any]


@dataclass(frozen=True)
class Take:
    """One call. Its tensors are on the meta device: shapes without content.

    Attributes:
        call: its arguments.
        output: what it returned.
        devices: of the output's tensors, in order.
        writes: it wrote into its arguments.
        anatomy: where the denoiser can be cut; None where nobody asked.
        parts: of each site, the call of its first unit and what its last one returned.
        seen: what the method's tap gave.
    """

    call: Call
    output: Any
    devices: tuple[torch.device, ...]
    writes: bool
    anatomy: Anatomy | None
    parts: Mapping[str, tuple[Call, Any]]
    seen: Sequence[Tensor]

    def again(self, *args: Any, **kwargs: Any) -> Any:
        """Stands in for the denoiser's forward, without content."""
        if self.writes:
            self.call.latents[0].zero_()
        return self.output

    def blank(self) -> Any:
        """What the loop gets to go on with: zeros."""
        devices = iter(self.devices)
        return pytree.tree_map_only(Tensor, lambda t: torch.zeros_like(t, device=next(devices)), self.output)


class Takes:
    """The takes of one rehearsal: of a whole denoiser one for each form of call, inside one for each guidance pass too."""

    def __init__(self) -> None:
        self._known: dict[Any, Take] = {}

    def whole(self, name: str, forward: Forward, call: Call) -> Take:
        """Of a whole denoiser, by name."""
        key = (name, call.fingerprint())
        if key not in self._known:
            self._known[key] = _take(call, lambda keep: (forward(*call.args, **call.kwargs), None, None))
        return self._known[key]

    def inside(
        self,
        name: str,
        branch: str,
        module: nn.Module,
        forward: Forward,
        call: Call,
        places: Sequence[str],
        tap: Tap | None,
    ) -> Take:
        """Of a denoiser that is cut at these places; how long things are inside may hang on what a pass masks out."""
        key = (name, branch, call.fingerprint())
        if key not in self._known:
            self._known[key] = _take(call, lambda keep: learn(module, forward, call, places, tap, keep))
        return self._known[key]


def _take(call: Call, run: Callable[[Any], tuple[Any, Anatomy | None, list[Tensor] | None]]) -> Take:
    parts: dict[str, tuple[Call, Any]] = {}

    def keep(site: str, kind: str, first: Call, output: Any, continues: Mapping[int, str]) -> None:
        parts[site] = _without_content(first, output)

    before = call.state()
    output, anatomy, seen = run(keep)
    blank_call, blank_output = _without_content(call, output)
    return Take(
        call=blank_call,
        output=blank_output,
        devices=tuple(leaf.device for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)),
        writes=call.state() != before,
        anatomy=anatomy,
        parts=parts,
        seen=blank_call.latents if seen is None else [tensor.to("meta") for tensor in seen],
    )


def _without_content(call: Call, output: Any) -> tuple[Call, Any]:
    """A call and its output on the meta device; what was one tensor in both still is."""
    known: dict[int, Tensor] = {}

    def meta(tensor: Tensor) -> Tensor:
        return known.setdefault(id(tensor), tensor.detach().to("meta"))

    return call.mapped(meta), pytree.tree_map_only(Tensor, meta, output)
