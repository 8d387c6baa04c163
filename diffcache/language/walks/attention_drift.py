"""The walk of Elastic-Cache: from the first layer whose attention drifts on, all rows are computed again."""

from dataclasses import dataclass

import torch
from torch import Tensor

from diffcache.kernels.attention_drift import attention_drift
from diffcache.kernels.attention_probe import attention_received
from diffcache.language.backbones.base import Backbone, Rotary
from diffcache.language.cache import Rows, TokenKVCache, rows_of, take
from diffcache.language.ledger import Ledger
from diffcache.language.sampler.canvas import Canvas
from diffcache.language.walks.base import Walk


class DriftWalk(Walk):
    """Elastic-Cache (arXiv 2510.14973), with the attention of tracked and window rows alone.

    In each layer the tracked tokens (those that the window attends most) are asked how they attended before the rows were
    written and how they do now. Where the mean cosine falls below `gamma`, the next layer's stored inputs take the
    place of the rows, and all positions are computed from there on.

    Attributes:
        gamma: bound on the cosine.
        track: tracked tokens in each layer.
        delayed: act on the drift that the call before has measured. One read from the device for each call instead of
            one for each layer; a refresh comes one call later.
        over_keys: the cosine runs over keys, not heads.
        layer_from: the first layer that the last call computed for all rows; number of layers where there was none.
    """

    def __init__(
        self,
        net: Backbone,
        cache: TokenKVCache,
        ledger: Ledger,
        gamma: float,
        track: int,
        delayed: bool,
        over_keys: bool,
    ) -> None:
        super().__init__(net, cache, ledger)
        self.gamma = gamma
        self.track = track
        self.delayed = delayed
        self.over_keys = over_keys
        self.layer_from = 0
        self._full = True
        self._drifts: list[Tensor] = []
        self._received: list[Tensor] = []

    def begin(self, canvas: Canvas, full: bool) -> None:
        self._full = full
        self._window = Watched.of(canvas.candidates)
        self._tracked = None if full or self.extra is None else Watched.of(self.extra)
        if self._tracked is not None:
            self._watched = torch.cat([self._window.rows, self._tracked.rows], dim=1)
        self._eligible = canvas.tokens != canvas.mask_id

    def run(self, hidden: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        layers = len(self.net.layers)
        self.layer_from = 0 if self._full else self._due(layers)
        self._drifts, self._received = [], []
        rotary, mask = self.rotary(rows), self.cache.mask()
        self._attendable = None if mask is None else mask[:, 0, 0]
        for layer in range(layers):
            self.cache.write_plane("inputs", layer, rows, hidden)
            if layer == self.layer_from and not self._full:
                rows, self._tracked = self.everything(), None
                hidden, rotary = self.cache.plane("inputs", layer).clone(), self.rotary(rows)
            hidden = self.layer(layer, hidden, rows, rotary, mask)
            if self._tracked is not None and not self.delayed and float(self._drifts[-1].min()) < self.gamma:
                self.layer_from = layer + 1
        eligible = self._eligible if self._attendable is None else self._eligible & self._attendable
        self.extra = most_attended(torch.stack(self._received), eligible, self.track)
        return hidden, rows

    def layer(self, layer: int, hidden: Tensor, rows: Rows, rotary: Rotary, mask: Tensor | None) -> Tensor:
        before = None
        if self._tracked is not None:
            assert isinstance(rows, Tensor)  # a range means a full call, in which nothing is tracked
            asked, keys = self._asked(layer, self._tracked.rows)
            before = asked, rows, take(keys, rows, dim=2)
        queries = self.write(layer, rows, rotary, *self.net.project(layer, hidden))
        self.cache.write_plane("queries", layer, rows, queries.transpose(1, 2))
        self.ledger.computed(hidden.shape[1], self.cache.length)
        self._observe(layer, before)
        return self.net.finish(layer, hidden, self.net.attend(layer, queries, *self.cache.read(layer), mask))

    def _observe(self, layer: int, before: tuple[Tensor, Tensor, Tensor] | None) -> None:
        """Notes what the window attends, and how far the tracked tokens have drifted.

        Args:
            before: of the latter: their old queries, the rows that were written since, and the keys that stood there.
        """
        share, how = self._window.share, (self._attendable, self.net.scale)
        if before is None or self._tracked is None:
            self._received.append(attention_received(*self._asked(layer, self._window.rows), share, *how))
            return
        queries, keys = self._asked(layer, self._watched)
        received, cosine = attention_drift(queries, share, before[0], keys, *before[1:], *how, self.over_keys)
        self._received.append(received)
        self._drifts.append(self._tracked.mean(cosine))

    def _due(self, layers: int) -> int:
        """The layer to refresh from, by what the call before has measured."""
        if not self.delayed or not self._drifts:
            return layers
        due = (torch.stack(self._drifts).amin(dim=1) < self.gamma).tolist()
        return due.index(True) + 1 if any(due) else layers

    def _asked(self, layer: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Stored queries of rows [b, n], [b, H, n, D], and all stored keys [b, K, S, D]."""
        self.ledger.probed(rows.shape[1] * self.cache.length * self.ledger.costs.pair // 2)
        return take(self.cache.plane("queries", layer), rows).transpose(1, 2), self.cache.read(layer)[0]


@dataclass(frozen=True)
class Watched:
    """Positions [b, n], and how much each counts: [b, n], 0 for what only fills a short list up, equal for all others."""

    rows: Tensor
    share: Tensor

    @classmethod
    def of(cls, wanted: Tensor) -> "Watched":
        """Those where `wanted` [b, S] holds. One read from the device."""
        rows = rows_of(wanted)
        counts = wanted.sum(dim=1, keepdim=True)
        place = torch.arange(rows.shape[1], device=rows.device)
        return cls(rows, (place < counts) / counts.clamp(min=1))

    def mean(self, cosine: Tensor) -> Tensor:
        """Mean [b] of a cosine [b, n]; 1 where no position counts."""
        return 1 - ((1 - cosine) * self.share).sum(dim=1)


def most_attended(received: Tensor, eligible: Tensor, count: int) -> Tensor:
    """Bool [b, S]: eligible positions that are among the `count` which get most attention [L, b, S] in any layer.

    Args:
        eligible: bool [b, S].
    """
    best = received.masked_fill(~eligible, -1.0).topk(min(count, eligible.shape[1]), dim=2)
    chosen = torch.zeros_like(eligible).expand_as(received).scatter(2, best.indices, best.values >= 0)
    return chosen.any(dim=0)
