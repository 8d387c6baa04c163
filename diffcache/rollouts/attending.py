"""What happens at each attention of a denoiser in a rollout.

Attentions of the video's tokens on themselves see the past; all others (on texts) are computed as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from diffcache.hooks.attachments import attachment_of, paused
from diffcache.hooks.attention_calls import AttentionCall, AttentionCalls
from diffcache.hooks.module_calls import ModuleCalls, replaced
from diffcache.rollouts.rotary import Rotary


class AttentionSite(NamedTuple):
    """An attention of a denoiser: the module in which it is computed, and which of that module's attentions it is."""

    module: str
    number: int


Attended = Callable[[AttentionSite, AttentionCall], Tensor]
"""Computes the attention of a site."""


class PolicyBySite:
    """An attention policy that knows the site of each call.

    Args:
        modules: follows the modules in which attentions are computed.
        attend: computes them.
    """

    def __init__(self, modules: ModuleCalls, attend: Attended) -> None:
        self.modules = modules
        self._attend = attend
        self._count = Counter[tuple[str, int]]()

    def attend(self, call: AttentionCall) -> Tensor:
        running = self.modules.innermost
        self._count[running] += 1
        return self._attend(AttentionSite(running[0], self._count[running] - 1), call)


@dataclass(frozen=True)
class Seen:
    """The past as one attention sees it: keys at their places and values, [B, H, T, D] each."""

    key: Tensor
    value: Tensor


class Reading:
    """Puts the past before a chunk's own keys and values.

    Args:
        sites: indices of the attentions of the video's tokens on themselves.
        seen: gives the past of an attention, from its index and its call; None where there is none.
    """

    def __init__(
        self, sites: Mapping[AttentionSite, int], seen: Callable[[int, AttentionCall], Seen | None]
    ) -> None:
        self.sites = sites
        self.seen = seen

    def attend(self, site: AttentionSite, call: AttentionCall) -> Tensor:
        index = self.sites.get(site)
        past = None if index is None else self.seen(index, call)
        if past is None:
            return call.compute()
        key, value = torch.cat((past.key, call.key), -2), torch.cat((past.value, call.value), -2)
        return call.with_keys(key, value, call.mask).compute()


class Writing(Reading):
    """Reads, and notes what the chunk's own keys, values and queries are.

    Attributes:
        written: by index of the attention, its call.
    """

    def __init__(
        self, sites: Mapping[AttentionSite, int], seen: Callable[[int, AttentionCall], Seen | None]
    ) -> None:
        super().__init__(sites, seen)
        self.written: dict[int, AttentionCall] = {}

    def attend(self, site: AttentionSite, call: AttentionCall) -> Tensor:
        if site in self.sites:
            self.written[self.sites[site]] = call
        return super().attend(site, call)


class BlockCausal:
    """Each chunk of a longer video sees itself and those before it: what a rollout computes, in one forward.

    Args:
        sites: the attentions of the video's tokens on themselves.
        lengths: tokens of each chunk.
    """

    def __init__(self, sites: Mapping[AttentionSite, int], lengths: list[int]) -> None:
        self.sites = sites
        self.ends = torch.tensor(lengths).cumsum(0).tolist()

    def attend(self, site: AttentionSite, call: AttentionCall) -> Tensor:
        if site not in self.sites:
            return call.compute()
        outputs, start = [], 0
        for end in self.ends:
            chunk = replace(
                call,
                query=call.query[..., start:end, :],
                key=call.key[..., :end, :],
                value=call.value[..., :end, :],
            )
            outputs.append(chunk.compute())
            start = end
        return torch.cat(outputs, -2)


@contextmanager
def attended(modules: ModuleCalls, attend: Attended) -> Iterator[None]:
    """Inside, the attentions of a denoiser's calls go to a function of their site."""
    with modules.followed(), AttentionCalls(PolicyBySite(modules, attend)):
        yield


@contextmanager
def placed(rotary: Rotary | None, start: int, frames: int) -> Iterator[None]:
    """Inside, a chunk's calls stand at a later place: that of frame `start`."""
    if rotary is None or start == 0:
        yield
        return
    rows = rotary.rows(start, frames)
    with replaced(rotary.module, lambda *_: rows):
        yield


@contextmanager
def computed_in_full(denoiser: nn.Module) -> Iterator[None]:
    """Inside, whatever `accelerate` attached to the denoiser reuses nothing."""
    with paused(denoiser) if attachment_of(denoiser) is not None else nullcontext():
        yield
