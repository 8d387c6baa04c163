"""The walk of Elastic-Cache: from the first layer whose attention drifts on, all rows are computed again."""

import torch
from torch import Tensor

from diffcache.language.backbones.base import Backbone
from diffcache.language.cache import Rows, TokenKVCache, rows_of, take
from diffcache.language.canvas import Canvas
from diffcache.language.ledger import Ledger
from diffcache.language.probes import attention_drift, attention_weights, most_attended
from diffcache.language.walk import Walk


class DriftWalk(Walk):
    """Elastic-Cache (arXiv 2510.14973), with attention weights of tracked and window rows alone.

    In each layer the tracked tokens (those that the window attends most) are asked how they attended before their rows
    were written and how they do now. Where the mean cosine falls below `gamma`, the next layer's stored inputs take the
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
        self._window = self._written = cache.real
        self._drifted: Tensor | None = None

    def begin(self, canvas: Canvas, full: bool) -> None:
        self._full = full
        self._window = canvas.candidates
        self._written = canvas.tokens != canvas.mask_id

    def run(self, hidden: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        layers = len(self.net.layers)
        partial = not self._full
        self.layer_from = self._due(layers) if partial else 0
        watched = rows_of(self.extra) if partial and self.extra is not None else None
        chosen = torch.zeros_like(self._window)
        drift: list[Tensor] = []
        rotary, mask = self.rotary(rows), self.cache.mask()
        for layer in range(layers):
            self.cache.write_plane("inputs", layer, rows, hidden)
            if partial and layer == self.layer_from:
                rows, partial = self.everything(), False
                hidden, rotary = self.cache.plane("inputs", layer).clone(), self.rotary(rows)
            queries, keys, values = self.net.project(layer, hidden, rotary)
            before = self._attention(layer, watched) if partial and watched is not None else None
            self.cache.write(layer, rows, keys, values)
            self.cache.write_plane("queries", layer, rows, queries.transpose(1, 2))
            if before is not None and watched is not None:
                drift.append(self._drift(before, self._attention(layer, watched), watched))
                if not self.delayed and float(drift[-1].min()) < self.gamma:
                    self.layer_from = layer + 1
            chosen |= self._chosen(layer)
            self.ledger.computed(hidden.shape[1])
            hidden = self.net.finish(
                layer, hidden, self.net.attend(layer, queries, *self.cache.read(layer), mask)
            )
        self.extra = chosen
        self._drifted = torch.stack(drift).amin(dim=1) < self.gamma if self.delayed and drift else None
        return hidden, rows

    def _due(self, layers: int) -> int:
        """The layer to refresh from, by what the call before has measured."""
        if self._drifted is None:
            return layers
        due = self._drifted.tolist()
        return due.index(True) + 1 if any(due) else layers

    def _attention(self, layer: int, rows: Tensor) -> Tensor:
        """How rows [b, n] attend the stored keys with their stored queries, [b, H, n, S]."""
        queries = take(self.cache.plane("queries", layer), rows).transpose(1, 2)
        keys, _ = self.cache.read(layer)
        self.ledger.probed(rows.shape[1] * self.cache.length * self.ledger.costs.pair // 2)
        return attention_weights(queries, keys, self.net.scale, self.cache.mask())

    def _drift(self, before: Tensor, after: Tensor, watched: Tensor) -> Tensor:
        assert self.extra is not None
        attendable = None if self.cache.mask() is None else self.cache.attendable
        return attention_drift(before, after, _counted(self.extra, watched), attendable, self.over_keys)

    def _chosen(self, layer: int) -> Tensor:
        """What the window attends most in this layer, bool [b, S]."""
        rows = rows_of(self._window)
        eligible = self._written & self.cache.attendable
        return most_attended(self._attention(layer, rows), _counted(self._window, rows), eligible, self.track)


def _counted(wanted: Tensor, rows: Tensor) -> Tensor:
    """Bool [b, n]: which entries of `rows` [b, n] are wanted, and not a repetition."""
    fresh = torch.ones_like(rows, dtype=torch.bool)
    fresh[:, 1:] = rows[:, 1:] != rows[:, :-1]
    return fresh & wanted.gather(1, rows)
