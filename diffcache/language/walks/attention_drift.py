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
        delayed: act on the drift that the call before has measured, which is read together with the number of rows. A refresh
            comes one call later.
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

    The drifts are read once for each call: the layers are computed as if none had drifted, and where one has, those above it
    are computed again. So rows of these layers are computed twice in such a call.

    Attributes:
        layer_from: the first layer that the last call computed for all rows; number of layers where there was none.
    """

    def __init__(self, net: Backbone, cache: TokenKVCache, report: LanguageReport, rule: DriftRule) -> None:
        super().__init__(net, cache, report)
        self.rule = rule
        self.layer_from = 0

    def through_layers(self, canvas: Canvas, rows: Rows, full: bool) -> tuple[Tensor, Rows]:
        layers, hidden = len(self.net.layers), self.embed(canvas, rows)
        mask = self.cache.mask(rows)  # which knows now what the call writes
        attendable = None if mask is None else mask[:, 0, 0]
        probe = AttentionProbe(self, canvas, None if full else self.wanted_rows, rows, attendable)
        self.layer_from = layers if self.told is None else self.told
        hidden = self._layers(probe, range(self.layer_from), hidden, rows, mask)
        if self.layer_from < layers:
            self.cache.write_features("inputs", self.layer_from, rows, hidden)
        elif probe.drifts and not self.rule.delayed:
            self.layer_from = int(self._first_due(probe.drifts))
        if self.layer_from < layers:
            probe.forget_from(self.layer_from)
            rows, hidden = self.all_rows(), self.cache.features("inputs", self.layer_from).clone()
            hidden = self._layers(probe, range(self.layer_from, layers), hidden, rows, mask)
        eligible = canvas.tokens != canvas.mask_id
        eligible = eligible if attendable is None else eligible & attendable
        self.wanted_rows = most_attended(torch.stack(probe.received), eligible, self.rule.tracked)
        self.asked = self._first_due(probe.drifts) if self.rule.delayed and probe.drifts else None
        self.layer_from = 0 if full else self.layer_from
        return hidden, rows

    def _layers(
        self, probe: "AttentionProbe", which: range, hidden: Tensor, rows: Rows, mask: Tensor | None
    ) -> Tensor:
        """The output of these layers for rows; keeps their inputs."""
        rotary = self.rotary(rows)
        for layer in which:
            self.cache.write_features("inputs", layer, rows, hidden)
            hidden = self._probed_layer(probe, layer, hidden, rows, rotary, mask)
        return hidden

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

    def _first_due(self, drifts: list[Tensor]) -> Tensor:
        """The layer above the first that has drifted too far for some text, int64 []; number of layers where none has."""
        due = torch.stack(drifts).amin(dim=1) < self.rule.gamma
        return torch.where(due.any(), due.int().argmax() + 1, len(self.net.layers))


class AttentionProbe:
    """Looks at the attention of one model call, layer by layer.

    Args:
        walk: whose call.
        canvas: the texts. The attention of what may be written next is summed up.
        tracked: bool [b, S], positions whose attention before and after is compared; None for none.
        rows: what the call computes.
        attendable: bool [b, S]; None where all positions are.

    Attributes:
        tracked: those positions; None stops the comparing.
        received: attention that each position got from the window, [b, S] for each layer.
        drifts: mean cosine [b] of the tracked positions, for each layer where there are any.
    """

    def __init__(
        self,
        walk: AttentionDriftWalk,
        canvas: Canvas,
        tracked: Tensor | None,
        rows: Rows,
        attendable: Tensor | None,
    ) -> None:
        self.walk = walk
        self.window = WeightedRows.of(canvas.candidates, canvas.window or canvas.length)
        self.tracked = None
        if tracked is not None and isinstance(rows, Tensor):
            self.tracked = WeightedRows.of(tracked, rows.shape[1])  # they are among the rows
        self.attendable = attendable
        self.received: list[Tensor] = []
        self.drifts: list[Tensor] = []
        self._both = self.window.rows
        if self.tracked is not None:
            self._both = torch.cat([self.window.rows, self.tracked.rows], dim=1)

    def forget_from(self, layer: int) -> None:
        """From this layer on nothing is compared any more, and what was seen is seen anew."""
        self.tracked = None
        del self.received[layer:]

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
    def of(cls, wanted: Tensor, most: int) -> "WeightedRows":
        """Those where `wanted` [b, S] holds, no more than `most` for each text."""
        rows = rows_of(wanted, most)
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
