"""The attention probe: how much attention the tokens of the picture receive, block by block."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from diffcache.engine.observers import Observer
from diffcache.host.call import Call
from diffcache.schedulers.steps import Step

AT_ONCE = 2**24
"""Entries of the attention matrix that are held at a time."""

LOOKS = 10
"""Ticks of a run at which attention is looked at, about."""

Keys = Mapping[int, Tensor]
"""Number of keys -> bool [keys]: those that stand for the picture."""


class AttentionProbe(Observer):
    """Watches the attentions of blocks; for runs with the site "block".

    Args:
        keys: which keys belong to the picture; attentions over other numbers of keys are left out, as is cross-attention.

    Attributes:
        received: by block, one tensor [rows, tokens of the picture] for each attention call: mean over heads and queries.
    """

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self.received: dict[str, list[Tensor]] = {}
        self._seen: _Attentions | None = None

    def computing(self, denoiser: str, step: Step) -> None:
        if step.tick % max((step.num_ticks or 1) // LOOKS, 1) == 0:
            self._seen = _Attentions()
            self._seen.__enter__()  # type: ignore[no-untyped-call]

    def computed(
        self, denoiser: str, step: Step, features: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> None:
        seen = self._seen
        self.close()
        for query, key, _ in [] if seen is None else seen.calls:
            picture = self.keys.get(key.shape[-2])
            if picture is not None and picture.any():
                share = attention_received(query, key)[:, picture.to(key.device)]
                self.received.setdefault(step.site, []).append(share.cpu())

    def close(self) -> None:
        """Stops watching, wherever the run has ended."""
        if self._seen is not None:
            self._seen.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._seen = None


def attention_received(query: Tensor, key: Tensor) -> Tensor:
    """Mean attention weight of each key, over heads and queries; fp32 [batch, keys].

    Args:
        query: [batch, heads, queries, width].
        key: [batch, heads, keys, width]; fewer heads are shared by groups of the query's.
    """
    key = key.float().repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    rows = max(AT_ONCE // (key.shape[0] * key.shape[1] * key.shape[2]), 1)
    total = key.new_zeros(key.shape[0], key.shape[2])
    for part in torch.split(query.float(), rows, dim=2):
        weights = (part @ key.mT / query.shape[-1] ** 0.5).softmax(-1)
        total += weights.sum((1, 2))
    return total / (query.shape[1] * query.shape[2])


def keys_of_picture(denoiser: nn.Module, args: Any, kwargs: dict[str, Any]) -> dict[int, Tensor]:
    """Which keys of attention stand for the picture, by number of keys: those whose values change with the latents where such
    an attention is first reached. Text before or after the picture is told apart without knowing the model.

    Args:
        denoiser: a plain module.
        args, kwargs: of an example call.
    """
    latents = {id(latent) for latent in Call.of(denoiser, args, kwargs).latents}

    def moved(leaf: Any) -> Any:
        return 1 - leaf if id(leaf) in latents else leaf

    seen = []
    for change in (lambda leaf: leaf, moved):
        given, named = pytree.tree_map(change, (args, kwargs))
        with torch.no_grad(), _Attentions() as attentions:
            denoiser(*given, **named)
        seen.append([value for _, _, value in attentions.calls])
    found: dict[int, Tensor] = {}
    for before, after in zip(*seen, strict=True):
        changed = (before != after).any(-1).flatten(0, 1).any(0).cpu()
        if changed.any():  # not of cross-attention, which may have as many keys
            found.setdefault(before.shape[-2], changed)
    return found


class _Attentions(TorchFunctionMode):
    """Notes (query, key, value) of every call of scaled-dot-product attention."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Tensor, Tensor, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is scaled_dot_product_attention:
            named = {**dict(zip(("query", "key", "value"), args, strict=False)), **(kwargs or {})}
            self.calls.append((named["query"], named["key"], named["value"]))
        return func(*args, **(kwargs or {}))
