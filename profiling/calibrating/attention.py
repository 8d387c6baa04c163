"""The attention probe: an observer that measures how much attention the tokens of the picture receive in each block."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from typing_extensions import Self

from diffcache.engine.observers import Observer
from diffcache.host.call import Call
from diffcache.schedulers.steps import Step

AT_ONCE = 2**24
"""Entries of the attention matrix that are in memory at a time: 64 MiB in fp32."""

PROBED_TICKS = 10
"""About how many ticks of a run are probed. Attention to the foreground hardly changes from tick to tick."""

Keys = Mapping[int, Tensor]
"""For each number of keys, bool [keys]: True for keys that belong to the picture."""


class AttentionProbe(Observer):
    """Measures the attentions inside blocks, in runs with the site "block". It is a context manager.

    Args:
        keys: which keys belong to the picture. Attentions over other numbers of keys do not count; so cross-attention does not.

    Attributes:
        received: for each block, one tensor [rows, tokens of the picture] for each attention call: the mean weight over
            heads and queries.
    """

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self.received: dict[str, list[Tensor]] = {}
        self._seen: _Attentions | None = None
        self._watching = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._watching.close()

    def computing(self, denoiser: str, step: Step) -> None:
        if step.tick % max((step.num_ticks or 1) // PROBED_TICKS, 1) == 0:
            self._seen = self._watching.enter_context(_Attentions())

    def computed(
        self, denoiser: str, step: Step, features: Sequence[Tensor], outputs: Sequence[Tensor], stream: int
    ) -> None:
        self._watching.close()
        seen, self._seen = self._seen, None
        for query, key, _ in [] if seen is None else seen.calls:
            picture = self.keys.get(key.shape[-2])
            if picture is not None and picture.any():
                share = attention_received(query, key)[:, picture.to(key.device)]
                self.received.setdefault(step.site, []).append(share.cpu())


def attention_received(query: Tensor, key: Tensor) -> Tensor:
    """The attention weight of each key, mean over heads and queries; fp32 [batch, keys].

    Args:
        query: [batch, heads, queries, width].
        key: [batch, heads, keys, width]. With fewer heads than the query, each is shared by a group of the query's heads.
    """
    key = key.float().repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    rows = max(AT_ONCE // (key.shape[0] * key.shape[1] * key.shape[2]), 1)
    total = key.new_zeros(key.shape[0], key.shape[2])
    for part in torch.split(query.float(), rows, dim=2):
        weights = (part @ key.mT / query.shape[-1] ** 0.5).softmax(-1)
        total += weights.sum((1, 2))
    return total / (query.shape[1] * query.shape[2])


def keys_of_picture(denoiser: nn.Module, args: Any, kwargs: dict[str, Any]) -> dict[int, Tensor]:
    """Which keys belong to the picture, by number of keys.

    The denoiser is called twice, with different latents. In the first attention with a number of keys, the keys whose values
    differ belong to the picture. So the order of text and picture need not be known.

    Args:
        denoiser: a plain module.
        args, kwargs: arguments of an example call.
    """
    latents = {id(latent) for latent in Call.of(denoiser, args, kwargs).latents}

    def other_latents(leaf: Any) -> Any:
        return 1 - leaf if id(leaf) in latents else leaf

    seen = []
    for change in (lambda leaf: leaf, other_latents):
        given, named = pytree.tree_map(change, (args, kwargs))
        with torch.no_grad(), _Attentions() as attentions:
            denoiser(*given, **named)
        seen.append([value for _, _, value in attentions.calls])
    found: dict[int, Tensor] = {}
    for before, after in zip(*seen, strict=True):
        changed = (before != after).any(-1).flatten(0, 1).any(0).cpu()
        if changed.any():  # cross-attention may have as many keys, but none of them changes
            found.setdefault(before.shape[-2], changed)
    return found


class _Attentions(TorchFunctionMode):
    """Collects (query, key, value) of every call of scaled-dot-product attention."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Tensor, Tensor, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is scaled_dot_product_attention:
            named = {**dict(zip(("query", "key", "value"), args, strict=False)), **(kwargs or {})}
            self.calls.append((named["query"], named["key"], named["value"]))
        return func(*args, **(kwargs or {}))
