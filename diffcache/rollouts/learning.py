"""Learning how a denoiser rolls out, proved by two probes at its first call.

Block-causal identity: a chunk after another, with the first one's keys and values kept, must return what one forward of both returns
under block-causal attention. Turning: keys of the first attention, turned by a frame, must be those of the same chunk a frame later.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from diffcache.hooks.attention_calls import AttentionCall
from diffcache.hooks.module_calls import ModuleCalls, replaced
from diffcache.host.call import Call
from diffcache.host.compiled import holds_compiled
from diffcache.rollouts.attending import (
    AttentionSite,
    BlockCausal,
    Reading,
    Seen,
    Writing,
    attended,
    computed_in_full,
    placed,
)
from diffcache.rollouts.history import TokenShape
from diffcache.rollouts.longer_calls import longer, second_half
from diffcache.rollouts.own_caches import own_cache_of
from diffcache.rollouts.rotary import Rotary
from diffcache.schedulers.errors import TargetError

TOLERANCE = 16
"""The identity holds within so many roundings of the output's dtype, as a fraction of its largest entry."""


@dataclass(frozen=True)
class Form:
    """What a chunk's call looks like.

    Attributes:
        frames: of the latents.
        per_frame: tokens of a frame.
        sizes: batch, height and width of the latents.
        shape: of a token's key and value.
        scale: of the attention's products.
        error: of the block-causal identity, a fraction of the largest entry; 0.0 to the bit.
    """

    frames: int
    per_frame: int
    sizes: tuple[int, ...]
    shape: TokenShape
    scale: float
    error: float


@dataclass(frozen=True)
class Learned:
    """How a denoiser rolls out.

    Attributes:
        modules: those in which attentions are computed.
        sites: the attentions of the video's tokens on themselves, each with its index.
        rotary: the rows that place a frame; None where keys have no temporal place.
        form: of the chunk that it was learned from.
    """

    modules: ModuleCalls
    sites: Mapping[AttentionSite, int]
    rotary: Rotary | None
    form: Form


def learn(denoiser: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Learned:
    """Learns from the arguments of a chunk's call. The denoiser is called about seven times.

    Raises:
        TargetError: it cannot roll out; the message says why.
    """
    if holds_compiled(denoiser):
        raise _refused(
            denoiser, "its attentions are compiled, and cannot be seen", "roll out before compiling"
        )
    if (own := own_cache_of(denoiser)) is not None:
        raise _refused(denoiser, *own)
    call = Call.of(denoiser, args, kwargs)
    latent = call.latents[0] if len(call.latents) == 1 else None
    if latent is None or latent.ndim != 5:
        raise _refused(
            denoiser,
            "its latents are not [batch, channels, frames, height, width]",
            "give a video transformer's own call",
        )
    with torch.no_grad(), computed_in_full(denoiser):
        return _learned(denoiser, call, latent)


def _learned(denoiser: nn.Module, call: Call, latent: Tensor) -> Learned:
    once, twice = _Heard(denoiser), _Heard(denoiser)
    double = longer(call, latent)
    once.listen(denoiser, call)
    try:
        twice.listen(denoiser, double)
    except (RuntimeError, ValueError, IndexError) as failure:
        said = str(failure).partition("\n")[0][:90]
        raise _refused(
            denoiser, f"it cannot be called with twice the frames ({said})", "choose another denoiser"
        ) from failure
    sites, tokens = _sites(denoiser, once.calls, twice.calls)
    frames = latent.shape[2]
    if tokens % frames:
        raise _refused(denoiser, f"its {frames} latent frames make {tokens} tokens", "give whole frames")
    owners = {site.module for site in once.calls}
    modules = ModuleCalls({name: part for name, part in denoiser.named_modules() if name in owners})
    rotary = _rotary(denoiser, once, latent)
    first = once.calls[next(iter(sites))]
    with attended(modules, BlockCausal(sites, [tokens, tokens]).attend):
        whole = _tensor(denoiser(*double.args, **double.kwargs))
    error = _identity_error(denoiser, (modules, sites, rotary), call, double, whole)
    if rotary is not None:
        _check_turning(denoiser, (modules, sites, rotary), call)
    scale = first.options.get("scale") or first.query.shape[-1] ** -0.5
    sizes = (latent.shape[0], *latent.shape[3:])
    form = Form(frames, tokens // frames, sizes, TokenShape.of(first.key, first.value), scale, error)
    return Learned(modules, sites, rotary, form)


class _Heard:
    """Listens to one call: attentions by site, and which modules gave pairs of cosines and sines."""

    def __init__(self, denoiser: nn.Module) -> None:
        self.modules = ModuleCalls(dict(denoiser.named_modules()))
        self.calls: dict[AttentionSite, AttentionCall] = {}
        self.pairs: list[nn.Module] = []

    def listen(self, denoiser: nn.Module, call: Call) -> Any:
        def note(site: AttentionSite, attention: AttentionCall) -> Tensor:
            self.calls[site] = attention
            return attention.compute()

        def look(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            if _is_pair(output) and len(args) == 1 and isinstance(args[0], Tensor) and args[0].ndim == 5:
                self.pairs.append(module)
            return output

        with ExitStack() as stack:
            for module in denoiser.modules():
                stack.enter_context(replaced(module, look))
            stack.enter_context(attended(self.modules, note))
            return denoiser(*call.args, **call.kwargs)


def _sites(
    denoiser: nn.Module,
    once: Mapping[AttentionSite, AttentionCall],
    twice: Mapping[AttentionSite, AttentionCall],
) -> tuple[dict[AttentionSite, int], int]:
    """The attentions of the video's tokens on themselves, and their number of tokens: those that double with the frames."""
    if not once:
        raise _refused(denoiser, "no attention was seen in it", "choose the native attention backend")
    if once.keys() != twice.keys():
        raise _refused(denoiser, "it attends otherwise in longer videos", "choose another denoiser")
    sites: dict[AttentionSite, int] = {}
    lengths = set[int]()
    for site, call in once.items():
        queries, keys = call.query.shape[-2], call.key.shape[-2]
        more = twice[site].key.shape[-2] - keys
        if more == 0:
            continue
        if more != keys or queries != keys or call.query.ndim != 4:
            raise _refused(
                denoiser,
                "video and text attend together, or frames apart: what is kept of a chunk would depend on later ones",
                "choose a denoiser that attends to texts by cross-attention",
            )
        if call.mask is not None or call.options.get("is_causal"):
            raise _refused(denoiser, "its attention has a mask of its own", "choose another denoiser")
        sites[site] = len(sites)
        lengths.add(keys)
    if len(lengths) != 1:
        raise _refused(
            denoiser,
            "no attention, or several of different lengths, grow with the video",
            "choose another denoiser",
        )
    return sites, lengths.pop()


def _rotary(denoiser: nn.Module, heard: _Heard, latent: Tensor) -> Rotary | None:
    if not heard.pairs:
        return None
    if len(heard.pairs) > 1:
        raise _refused(denoiser, "several of its modules make rotary rows", "choose another denoiser")
    try:
        return Rotary(heard.pairs[0], latent)
    except TargetError as error:
        raise _refused(denoiser, str(error).rstrip("."), "choose another denoiser") from None


Parts = tuple[ModuleCalls, Mapping[AttentionSite, int], Rotary | None]


def _identity_error(denoiser: nn.Module, parts: Parts, call: Call, double: Call, whole: Tensor) -> float:
    """By how much two chunks, one after the other, differ from both in one forward."""
    modules, sites, rotary = parts
    frames = call.latents[0].shape[2]
    second = second_half(double, frames)
    writing = Writing(sites, lambda *_: None)
    with attended(modules, writing.attend):
        first_output = _tensor(denoiser(*call.args, **call.kwargs))
    past = {i: Seen(c.key, c.value) for i, c in writing.written.items()}
    with placed(rotary, frames, frames), attended(modules, Reading(sites, lambda i, _: past[i]).attend):
        second_output = _tensor(denoiser(*second.args, **second.kwargs))
    chunked = torch.cat((first_output, second_output), 2)
    if chunked.shape != whole.shape or not bool(chunked.isfinite().all()):
        raise _refused(denoiser, "chunk by chunk it returns another shape", "choose another denoiser")
    largest = float(whole.float().abs().max().clamp_min(torch.finfo(torch.float32).tiny))
    error = float((chunked.float() - whole.float()).abs().max()) / largest
    if error > TOLERANCE * torch.finfo(whole.dtype).eps:
        raise _refused(
            denoiser,
            f"chunk by chunk it returns something else than with block-causal attention ({error:.1e} of the largest entry)",
            "choose a denoiser whose frames meet in attention alone",
        )
    return error


def _check_turning(denoiser: nn.Module, parts: Parts, call: Call) -> None:
    """Keys of the first attention, turned by a frame, are those of the same chunk a frame later."""
    modules, sites, rotary = parts
    assert rotary is not None
    keys = []
    for start in (1, 2):  # from 0 a turn is right by its definition
        writing = Writing(sites, lambda *_: None)
        with placed(rotary, start, call.latents[0].shape[2]), attended(modules, writing.attend):
            denoiser(*call.args, **call.kwargs)
        keys.append(writing.written[0].key)
    turned = rotary.turned(keys[0], torch.ones(1, 1, keys[0].shape[2], dtype=torch.int64))
    error = float((turned.float() - keys[1].float()).abs().max() / keys[1].float().abs().max())
    if error > TOLERANCE * torch.finfo(keys[0].dtype).eps:
        raise _refused(
            denoiser, f"its keys do not turn as its rotary rows say ({error:.1e})", "choose another denoiser"
        )


def _is_pair(output: Any) -> bool:
    return (
        isinstance(output, tuple)
        and len(output) == 2
        and all(isinstance(part, Tensor) and part.is_floating_point() for part in output)
        and output[0].shape == output[1].shape
    )


def _tensor(output: Any) -> Tensor:
    """The video that a denoiser returned."""
    found: Tensor = next(leaf for leaf in pytree.tree_leaves(_plain(output)) if isinstance(leaf, Tensor))
    return found


def _plain(output: Any) -> Any:
    return tuple(output.values()) if isinstance(output, Mapping) else output


def _refused(denoiser: nn.Module, why: str, instead: str) -> TargetError:
    return TargetError(f"{type(denoiser).__name__} cannot roll out: {why}; {instead}.")
