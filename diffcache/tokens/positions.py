"""Which tokens belong to which latents: latents are disturbed, and the tokens that change are theirs.

The denoiser's forward runs up to its first block only. So no order of tokens, no size of patches and no place of the text
need be known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from diffcache.discovery.storage_trace import Trace
from diffcache.discovery.unit_recorder import CallNames
from diffcache.discovery.units import blocks_of, is_list_member
from diffcache.hooks.watcher import watched
from diffcache.host.call import Call
from diffcache.schedulers.errors import ConfigError
from diffcache.tokens.grids import over_channels
from diffcache.tokens.layout import TokenLayout, TokenSequence

PLACES = (0.0, 0.999, 0.5)
"""The places that are disturbed alone, as shares of each dimension, until one of them is found among the tokens."""

PACKED_PATCHES = 6
"""Latents of so many dimensions are patches: [batch, tokens, channels, frames, height, width]."""

FEWEST = 2
"""No more places than this are no tokens of a picture (channels look so in a net of one dimension)."""

NO_BLOCK = "no block of it depends on the latents"
NO_TOKENS = "the latents reach its first block in no sequence of tokens"
SEVERAL_DIMS = "its tokens lie in several dimensions"


@dataclass(frozen=True)
class Entry:
    """Where the latents enter the blocks.

    Attributes:
        unit: name of the first block that they reach.
        path: of its argument that holds the tokens.
        dim: the dimension of the tokens.
        layout: its sequence.
        token_dim: of the latents: 1 where tokens are packed, [batch, tokens, ...], 2 in sounds, [batch, channels, tokens]; None in
            pictures and clips, [batch, channels, ..., height, width].
    """

    unit: str
    path: str
    dim: int
    layout: TokenLayout
    token_dim: int | None = None

    def latent_of(self, call: Call) -> Tensor:
        """A call's latents with tokens before channels, [batch, tokens, channels] or [batch, channels, ..., height, width].

        Raises:
            ConfigError: they are a list of samples that differ in size.
        """
        latents = call.latents
        if len({latent.shape for latent in latents}) > 1:
            raise ConfigError("rows: the pictures of this batch have different sizes: call them one by one.")
        latent = latents[0] if call.batched else torch.stack(latents)
        return latent if self.token_dim is None else latent.movedim(self.token_dim, 1).flatten(2)

    def masks_of(self, call: Call, places: Tensor) -> list[Tensor]:
        """Places as masks of the latents' entries, one for each of the call's latents.

        Args:
            places: bool [batch, places...].
        """
        whole = over_channels(places, self.latent_of(call))
        whole = whole.mT if self.token_dim == 2 else whole
        each = [whole] if call.batched else [*whole]
        return [mask.reshape(latent.shape) for mask, latent in zip(each, call.latents, strict=True)]


class _Reached(BaseException):
    """The block that was waited for has been called."""


class _Until:
    """Breaks a forward off at a block, and keeps copies of the block's tensor arguments."""

    def __init__(self, paths: Mapping[int, str], is_wanted: Callable[[str, Call], bool]) -> None:
        self.watches = paths
        self.name = ""
        self.given: dict[str, Tensor] = {}
        self._is_wanted = is_wanted
        self._names = CallNames()

    def unit(self, module: nn.Module, forward: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        name, call = self._names.next(self.watches[id(module)]), Call.of(module, args, kwargs)
        if self._is_wanted(name, call):
            self.name = name
            self.given = {path: tensor.detach().clone() for path, tensor in call.tensors.items()}
            raise _Reached
        return forward(*args, **kwargs)


def block_paths(denoiser: nn.Module) -> dict[int, str]:
    """Paths of a denoiser's blocks, by identity."""
    return {id(module): path for path, module in blocks_of(denoiser).items() if is_list_member(path)}


def entry_of(denoiser: nn.Module, forward: Callable[..., Any], call: Call) -> Entry | str:
    """Where the latents enter the blocks, or the reason why it cannot be told."""
    paths, trace = block_paths(denoiser), Trace(call.latents)
    until = _Until(paths, lambda name, unit: trace.evolves(unit.tensors.values()))
    with trace:
        _broken_off(forward, call, until)
    if not until.name:
        return NO_BLOCK
    everything = [torch.ones_like(latent, dtype=torch.bool) for latent in call.latents]
    all_of_it = _changed(forward, call, everything, until, paths)
    reason = NO_TOKENS
    for dims, share in product(_possible_dims(call), PLACES):
        masks = [_at(latent if call.batched else latent[None], dims, share) for latent in call.latents]
        one = _changed(forward, call, [mask if call.batched else mask[0] for mask in masks], until, paths)
        for path, changed in one.items():
            local = _local_dims(changed, all_of_it[path])
            if len(local) == 1:
                (dim,) = local
                places = _along(all_of_it[path], dim).nonzero().flatten().cpu()
                sequence = TokenSequence(changed.shape[dim], places)
                if len(places) > FEWEST:
                    layout = TokenLayout({sequence.length: sequence})
                    return Entry(until.name, path, dim, layout, token_dim=dims[0] if len(dims) == 1 else None)
            reason = SEVERAL_DIMS if local else reason
    return reason


def rows_of_latents(
    denoiser: nn.Module, forward: Callable[..., Any], call: Call, entry: Entry, masks: list[Tensor]
) -> Tensor:
    """The picture's tokens that some positions of the latents belong to, bool [samples, tokens], or [1, tokens] for all samples.

    Args:
        masks: bool, of each latent's shape.
    """
    paths = block_paths(denoiser)
    until = _Until(paths, lambda name, unit: name == entry.unit)
    _broken_off(forward, call, until)
    changed = _changed(forward, call, masks, until, paths).get(entry.path)
    if changed is None:  # nothing is masked
        changed = torch.zeros_like(until.given[entry.path], dtype=torch.bool)
    has_samples = entry.dim > 0 and len(changed) == call.batch
    samples = [*changed] if has_samples else [changed]
    dim = entry.dim - has_samples
    (sequence,) = entry.layout.sequences.values()
    places = sequence.places.to(changed.device)
    return torch.stack([_along(sample, dim)[places] for sample in samples])


def _changed(
    forward: Callable[..., Any], call: Call, masks: list[Tensor], plain: _Until, paths: Mapping[int, str]
) -> dict[str, Tensor]:
    """Which entries of a block's arguments change, by path, where the latents are disturbed under the masks."""
    latents = {id(latent): mask for latent, mask in zip(call.latents, masks, strict=True)}

    def disturbed(leaf: Tensor) -> Tensor:
        mask = latents.get(id(leaf))
        return leaf if mask is None else torch.where(mask, leaf * -0.5 + 1, leaf)

    until = _Until(paths, lambda name, unit: name == plain.name)
    _broken_off(forward, call.mapped(disturbed), until)
    return {
        path: before != until.given[path]
        for path, before in plain.given.items()
        if path in until.given
        and before.shape == until.given[path].shape
        and bool((before != until.given[path]).any())
    }


def _broken_off(forward: Callable[..., Any], call: Call, until: _Until) -> None:
    try:
        with watched(until):
            forward(*call.args, **call.kwargs)
    except _Reached:
        pass


def _possible_dims(call: Call) -> list[tuple[int, ...]]:
    """The dimensions of latents [batch, ...] that may be places: neither samples, nor channels, nor what patches hold."""
    ndim = call.latents[0].ndim + (not call.batched)
    if ndim == 3:
        return [(1,), (2,)]
    return [(1,)] if ndim == PACKED_PATCHES and call.batched else [tuple(range(2, ndim))]


def _at(latent: Tensor, dims: tuple[int, ...], share: float) -> Tensor:
    """One place of a latent [batch, ...], in all samples and channels, as a mask."""
    mask = torch.zeros_like(latent, dtype=torch.bool)
    place = mask
    for dim in dims:
        place = place.narrow(dim, int(share * latent.shape[dim]), 1)
    place.fill_(True)
    return mask


def _along(changed: Tensor, dim: int) -> Tensor:
    """Which positions of a dimension hold a change, [size]."""
    return changed.movedim(dim, 0).flatten(1).any(1)


def _local_dims(changed: Tensor, everything: Tensor) -> list[int]:
    """The dimensions in which a change at one place of the latents stays at some places; of a sequence the last holds channels.

    Args:
        changed: by the one place.
        everything: by all of the latents.
    """
    dims = {3: [1, 0], 2: [0]}.get(changed.ndim, [*range(changed.ndim)])
    return [dim for dim in dims if not torch.equal(_along(changed, dim), _along(everything, dim))]
