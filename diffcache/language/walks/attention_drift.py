"""The walk of Elastic-Cache: from the first layer whose attention drifts on, all rows are computed again."""

from dataclasses import dataclass

import torch
from torch import Tensor

from diffcache.kernels.attention_drift import attention_drift
from diffcache.kernels.attention_probe import attention_received
from diffcache.language.backbones.base import Backbone, Rotary
from diffcache.language.cache import Rows, TokenKVCache, rows_of, take
from diffcache.language.report import LanguageReport
from diffcache.language.sampler.canvas import Canvas
from diffcache.language.walks.base import LayerWalk

Written = tuple[Tensor, Tensor, Tensor]
"""What a layer's rows are about to replace: old queries of the tracked tokens, the rows, and the keys that stood there."""


@dataclass(frozen=True)
class DriftRule:
    """When a layer's attention has drifted too far.

    Attributes:
        gamma: bound on the cosine between a tracked token's old and new attention.
        tracked: tracked tokens in each layer.
        delayed: act on the drift that the call before has measured. One read from the device for each call instead of
            one for each layer; a refresh comes one call later.
        over_keys: the cosine runs over keys, not heads.
    """

    gamma: float
    tracked: int
    delayed: bool
    over_keys: bool


class AttentionDriftWalk(LayerWalk):
    """Elastic-Cache (arXiv 2510.14973), with the attention of tracked and window rows alone.

    Each layer compares how the tracked tokens (those that the window attends most) attended before the rows were written
    and how they attend now. Where the mean cosine falls below gamma, all positions are computed from the next layer on,
    from the inputs of that layer that are stored.

    Attributes:
        layer_from: the first layer that the last call computed for all rows; number of layers where there was none.
    """

    def __init__(self, net: Backbone, cache: TokenKVCache, report: LanguageReport, rule: DriftRule) -> None:
        super().__init__(net, cache, report)
        self.rule = rule
        self.layer_from = 0
        self._drifts: list[Tensor] = []

    def through_layers(self, canvas: Canvas, rows: Rows, full: bool) -> tuple[Tensor, Rows]:
        layers = len(self.net.layers)
        self.layer_from = 0 if full else self._due(layers)
        hidden, rotary, mask = self.embed(canvas, rows), self.rotary(rows), self.cache.mask(rows)
        attendable = None if mask is None else mask[:, 0, 0]
        probe = AttentionProbe(self, canvas.candidates, None if full else self.wanted_rows, attendable)
        for layer in range(layers):
            self.cache.write_features("inputs", layer, rows, hidden)
            if layer == self.layer_from and not full:
                rows, probe.tracked = self.all_rows(), None
                hidden, rotary = self.cache.features("inputs", layer).clone(), self.rotary(rows)
            hidden = self._probed_layer(probe, layer, hidden, rows, rotary, mask)
            if (
                probe.tracked is not None
                and not self.rule.delayed
                and float(probe.drifts[-1].min()) < self.rule.gamma
            ):
                self.layer_from = layer + 1
        eligible = canvas.tokens != canvas.mask_id
        eligible = eligible if attendable is None else eligible & attendable
        self.wanted_rows = most_attended(torch.stack(probe.received), eligible, self.rule.tracked)
        self._drifts = probe.drifts
        return hidden, rows

    def _probed_layer(
        self,
        probe: "AttentionProbe",
        layer: int,
        hidden: Tensor,
        rows: Rows,
        rotary: Rotary,
        mask: Tensor | None,
    ) -> Tensor:
        """One layer's output for these rows, whose attention is probed before and after they are written."""
        before = probe.before(layer, rows)
        queries = self.write(layer, rows, rotary, *self.net.project(layer, hidden))
        self.cache.write_features("queries", layer, rows, queries.transpose(1, 2))
        probe.after(layer, before)
        return self.attend(layer, hidden, queries, mask)

    def _due(self, layers: int) -> int:
        """The layer to refresh from, by what the call before has measured."""
        if not self.rule.delayed or not self._drifts:
            return layers
        due = (torch.stack(self._drifts).amin(dim=1) < self.rule.gamma).tolist()
        return due.index(True) + 1 if any(due) else layers


class AttentionProbe:
    """Looks at the attention of one model call, layer by layer.

    Args:
        walk: whose call.
        window: bool [b, S], positions whose attention is summed up.
        tracked: bool [b, S], positions whose attention before and after is compared; None for none.
        attendable: bool [b, S]; None where all positions are.

    Attributes:
        tracked: those positions; None stops the comparing.
        received: attention that each position got from the window, [b, S] for each layer.
        drifts: mean cosine [b] of the tracked positions, for each layer where there are any.
    """

    def __init__(
        self, walk: AttentionDriftWalk, window: Tensor, tracked: Tensor | None, attendable: Tensor | None
    ) -> None:
        self.walk = walk
        self.window = WeightedRows.of(window)
        self.tracked = None if tracked is None else WeightedRows.of(tracked)
        self.attendable = attendable
        self.received: list[Tensor] = []
        self.drifts: list[Tensor] = []
        self._both = self.window.rows
        if self.tracked is not None:
            self._both = torch.cat([self.window.rows, self.tracked.rows], dim=1)

    def before(self, layer: int, rows: Rows) -> Written | None:
        """What is compared with after these rows of a layer were written."""
        if self.tracked is None:
            return None
        assert isinstance(rows, Tensor)  # a range means a full call, in which nothing is tracked
        queries, keys = self._stored(layer, self.tracked.rows)
        return queries, rows, take(keys, rows, dim=2)

    def after(self, layer: int, before: Written | None) -> None:
        """Notes what the window attends, and how far the tracked tokens have drifted."""
        weight, how = self.window.weight, (self.attendable, self.walk.net.scale)
        if before is None or self.tracked is None:
            self.received.append(attention_received(*self._stored(layer, self.window.rows), weight, *how))
            return
        queries, keys = self._stored(layer, self._both)
        over_keys = self.walk.rule.over_keys
        received, cosine = attention_drift(queries, weight, before[0], keys, *before[1:], *how, over_keys)
        self.received.append(received)
        self.drifts.append(self.tracked.mean(cosine))

    def _stored(self, layer: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Stored queries of rows [b, n], [b, H, n, D], and all stored keys [b, K, S, D]."""
        cache, report = self.walk.cache, self.walk.report
        report.count_probe(rows.shape[1] * cache.length * report.costs.pair // 2)
        return take(cache.features("queries", layer), rows).transpose(1, 2), cache.read(layer)[0]


@dataclass(frozen=True)
class WeightedRows:
    """Positions [b, n], and how much each counts: [b, n], 0 for what only fills a short list up, equal for all others."""

    rows: Tensor
    weight: Tensor

    @classmethod
    def of(cls, wanted: Tensor) -> "WeightedRows":
        """Those where `wanted` [b, S] holds. One read from the device."""
        rows = rows_of(wanted)
        counts = wanted.sum(dim=1, keepdim=True)
        index = torch.arange(rows.shape[1], device=rows.device)
        return cls(rows, (index < counts) / counts.clamp(min=1))

    def mean(self, cosine: Tensor) -> Tensor:
        """Mean [b] of a cosine [b, n]; 1 where no position counts."""
        return 1 - ((1 - cosine) * self.weight).sum(dim=1)


def most_attended(received: Tensor, eligible: Tensor, count: int) -> Tensor:
    """Bool [b, S]: eligible positions that are among the `count` which get most attention [L, b, S] in any layer.

    Args:
        eligible: bool [b, S].
    """
    best = received.masked_fill(~eligible, -1.0).topk(min(count, eligible.shape[1]), dim=2)
    chosen = torch.zeros_like(eligible).expand_as(received).scatter(2, best.indices, best.values >= 0)
    return chosen.any(dim=0)
