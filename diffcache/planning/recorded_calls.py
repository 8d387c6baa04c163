"""Real calls of a denoiser, recorded without their content, to stand in for others of the same form."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from diffcache.discovery.cuts import Cuts
from diffcache.discovery.first_call import FirstCall, compute_first_call
from diffcache.discovery.wanted import Request
from diffcache.engine.branch import Branch
from diffcache.engine.execution import Invocation, Parts
from diffcache.host.call import Call
from diffcache.planning.first_call_bytes import CountedSite, FirstCallBytes, without_content


@dataclass(frozen=True)
class RecordedCall:
    """One real call. Its tensors are on the meta device: shapes without content.

    Attributes:
        call: its arguments.
        output: what it returned.
        devices: of the output's tensors, in order.
        writes: it wrote into its arguments.
        cuts: where the denoiser can be cut; None where nobody asked.
        sites: of each site, what it was given and what it returned.
        seen: what the method's tap gave.
        kept: counts what was kept in it, where sites inside were looked for.
    """

    call: Call
    output: Any
    devices: tuple[torch.device, ...]
    writes: bool
    cuts: Cuts | None
    sites: Mapping[str, CountedSite]
    seen: Sequence[Tensor]
    kept: FirstCallBytes | None

    def again(self, *args: Any, **kwargs: Any) -> Any:
        """Stands in for the denoiser's forward, without content."""
        if self.writes:
            self.call.latents[0].zero_()
        return self.output

    def blank(self) -> Any:
        """Zeros, with which the loop goes on."""
        devices = iter(self.devices)
        return pytree.tree_map_only(Tensor, lambda t: torch.zeros_like(t, device=next(devices)), self.output)

    def moved(self) -> Any:
        """Noise, with which the loop goes on where it matters which latents change."""
        devices = iter(self.devices)

        def noise(tensor: Tensor) -> Tensor:
            like = torch.randn_like if tensor.is_floating_point() else torch.zeros_like
            return like(tensor, device=next(devices))

        return pytree.tree_map_only(Tensor, noise, self.output)


class RecordedCalls:
    """The real calls of one dry run: one for each form of call, and inside a denoiser for each guidance pass too."""

    def __init__(self) -> None:
        self._known: dict[Any, RecordedCall] = {}

    def whole(self, name: str, asked: Invocation) -> RecordedCall:
        """That of a whole denoiser of this name; it is computed if there was none of its form."""
        key = (name, asked.call.fingerprint(asked.module))
        if key not in self._known:
            state = asked.call.state()
            output = asked.forward(*asked.call.args, **asked.call.kwargs)
            self._known[key] = _recorded(asked.call, state, output)
        return self._known[key]

    def inside(self, parts: Parts, branch: Branch, asked: Invocation) -> RecordedCall:
        """That of a denoiser that is cut at a method's sites. Lengths inside may depend on what a guidance pass masks out."""
        choices = parts.choices
        key = (choices.facts.denoiser, branch.name, asked.call.fingerprint(asked.module))
        if key not in self._known:
            state, kept = asked.call.state(), FirstCallBytes(parts, branch)
            request = Request(choices.sites_in(branch.name), choices.tap)
            first = compute_first_call(asked.module, asked.forward, asked.call, request, kept)
            self._known[key] = _recorded(asked.call, state, first.output, first, kept)
        return self._known[key]


def _recorded(
    call: Call,
    state: Mapping[str, Any],
    output: Any,
    first: FirstCall[CountedSite] | None = None,
    kept: FirstCallBytes | None = None,
) -> RecordedCall:
    """A call that has been computed; `state` is what `Call.state` was before it."""
    blank_call, blank_output = without_content(call, output)
    seen = None if first is None else first.seen
    return RecordedCall(
        call=blank_call,
        output=blank_output,
        devices=tuple(leaf.device for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)),
        writes=call.is_written(state),
        cuts=None if first is None else first.cuts,
        sites={} if first is None else first.kept,
        seen=blank_call.latents if seen is None else [tensor.to("meta") for tensor in seen],
        kept=kept,
    )
