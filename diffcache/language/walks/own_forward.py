"""The walk of Transformers' own classes: their forward, on a cache of Transformers' kind that scatters by position."""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from diffcache.language.backbones.base import outside_inference_mode
from diffcache.language.backbones.native import Native
from diffcache.language.cache import Rows, TokenKVCache
from diffcache.language.report import LanguageReport
from diffcache.language.sampler.canvas import Canvas
from diffcache.language.walks.base import Walk, predicted_by


class PositionLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's keys and values: new ones go to their positions, and all positions are attended.

    Attributes:
        rows: the positions of the call.
    """

    is_sliding = False

    def __init__(self, cache: TokenKVCache, layer: int) -> None:
        super().__init__()
        self.cache, self.layer = cache, layer
        self.rows: Rows = slice(0, 0)
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """The cache allocates by itself."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        self.cache.write(self.layer, self.rows, key_states, value_states)
        return self.cache.read(self.layer)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cache.length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return self.cache.capacity


class OwnForwardWalk(Walk):
    """Calls the model's own forward for the rows, with their positions."""

    def __init__(self, net: Native, cache: TokenKVCache, report: LanguageReport) -> None:
        super().__init__(net, cache, report)
        net.check_length(cache.capacity)
        self.net = net
        self.layers = [PositionLayer(cache, layer) for layer in range(len(net.layers))]

    def __call__(self, canvas: Canvas, rows: Rows, full: bool) -> tuple[Tensor, Rows]:
        tokens = self.tokens_of(canvas, rows)
        kept, predicted = predicted_by(canvas, rows, self.token_shift)
        count, wanted = tokens.shape[1], kept.stop - kept.start
        for layer in self.layers:
            layer.rows = rows
            self.report.count_layer(count, self.cache.length)
        self.report.count_logits(wanted)
        return outside_inference_mode(self._forward)(tokens, rows, kept), predicted

    def _forward(self, tokens: Tensor, rows: Rows, kept: slice) -> Tensor:
        mask, count = self.cache.mask(rows), tokens.shape[1]
        positions = (
            torch.arange(rows.start, rows.stop, device=tokens.device)[None]
            if isinstance(rows, slice)
            else rows
        )
        logits: Tensor = self.net.model(
            tokens,
            position_ids=positions,
            attention_mask=None if mask is None else self.net.as_mask(mask.expand(-1, -1, count, -1)),
            past_key_values=Cache(layers=self.layers),
            use_cache=True,
            logits_to_keep=torch.arange(kept.start, kept.stop, device=tokens.device),
        ).logits
        return logits
