"""What the first call of a guidance pass has taught of a denoiser. It is kept with the denoiser, for later passes and runs.

It holds for calls of the same form. No tensor and no module is part of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from diffcache.discovery.cuts import Cuts
from diffcache.discovery.taps import Tap
from diffcache.engine.branch import Branch
from diffcache.engine.choices import Choices
from diffcache.engine.execution import Invocation
from diffcache.host.call import Call
from diffcache.host.kept_with import KeptWith
from diffcache.store.streams import Basis, Layout

FORMS_KEPT = 16
"""Of each denoiser. Every method and every size of pictures has its own form."""


class Form(NamedTuple):
    """What a denoiser's cuts depend on.

    Attributes:
        built: how the denoiser is built (`NetworkFacts.form`).
        sites, tap, basis: the method's choices.
        reuses_memory: as in `Invocation`.
        autocast: the dtype that autocast computes in on the latents' device; None without autocast.
        fingerprint: the call's shapes, dtypes, devices and adapters.
        lengths: what its masks leave (`lengths_of`).
    """

    built: tuple[int, tuple[type, ...]]
    sites: tuple[str, ...]
    tap: Tap | None
    basis: Basis
    reuses_memory: bool
    autocast: torch.dtype | None
    fingerprint: tuple[Any, ...]
    lengths: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Learned:
    """What is known after a first call.

    Attributes:
        cuts: the sites.
        sources: paths of the denoiser's arguments that evolve with the latents.
        layouts: how each site's output splits into streams.
    """

    cuts: Cuts
    sources: frozenset[str]
    layouts: Mapping[str, Layout]


_learned: KeptWith[Learned] = KeptWith(FORMS_KEPT)


def form_of(asked: Invocation, choices: Choices, branch: Branch) -> Form:
    """The form of a branch's newest call."""
    device = asked.call.latents[0].device.type
    autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    where = choices.sites_in(branch.name), choices.tap, choices.basis
    lengths = lengths_of(asked.call)
    return Form(asked.network.form, *where, asked.reuses_memory, autocast, branch.fingerprint, lengths)


def lengths_of(call: Call) -> tuple[Any, ...]:
    """By argument, how much of each row its masks leave: some denoisers cut their sequences to that.

    A mask is a tensor of two dimensions that holds no floating-point numbers. Tensors without contents have none.
    """
    masks = {
        path: tensor
        for path, tensor in call.tensors.items()
        if tensor.ndim == 2 and not tensor.is_floating_point() and not tensor.is_meta
    }
    return tuple((path, *mask.sum(dim=1).tolist()) for path, mask in masks.items())


def recall(asked: Invocation, form: Form, branch: Branch) -> bool:
    """Gives a branch what calls of this form have taught; False where there have been none."""
    known = _learned.get(asked.module, form)
    if known is None:
        return False
    branch.cuts, branch.sources = known.cuts, set(known.sources)
    for site, layout in known.layouts.items():
        branch.store(site).layout = layout
    return True


def remember(asked: Invocation, form: Form, branch: Branch) -> None:
    """Keeps what a branch's first call has taught, if that is all that a later first call needs."""
    cuts = branch.cuts
    assert cuts is not None
    layouts = {site.name: branch.stores[site.name].layout for site in cuts.sites}
    known = {name: layout for name, layout in layouts.items() if layout is not None and layout.complete}
    if len(known) == len(cuts.sites) and all(each.is_plain for each in cuts.placeholders.values()):
        _learned.put(asked.module, form, Learned(cuts, frozenset(branch.sources), known))
    else:
        _learned.drop(asked.module, form)
