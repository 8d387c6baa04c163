"""Ledger: what a run computed, counted while it runs, and what it would have cost without a cache."""

from dataclasses import asdict, dataclass, field
from typing import Any

from diffcache.language.backbones.base import Backbone


@dataclass(frozen=True)
class Costs:
    """Floating-point operations (two for each multiply-add) of a model's parts.

    Attributes:
        row: one row through the matrices of one layer, 2 * (2 d^2 + 2 d d_kv + 3 d d_ff) for a Llama.
        pair: one query row attending one position in one layer, 4 H D.
        head: one row through the output layer, 2 d V.
        value: one row through one layer's value projection, 2 d d_kv.
        layers: number of layers.
    """

    row: int
    pair: int
    head: int
    value: int
    layers: int

    @classmethod
    def of(cls, net: Backbone) -> "Costs":
        """Counted from the weights; of a mixture of experts, as if every expert were asked."""
        matrices = sum(p.numel() for p in net.layers[0].parameters() if p.ndim >= 2)
        value = 2 * net.width * net.kv_heads * net.head_dim
        pair = 4 * net.heads * net.head_dim
        return cls(2 * matrices, pair, 2 * net.width * net.vocabulary, value, len(net.layers))

    def call(self, rows: int, span: int, predicted: int) -> int:
        """One model call: F(n) of rows in every layer over `span` positions, with logits of `predicted` rows."""
        return rows * self.layers * (self.row + self.pair * span) + predicted * self.head


@dataclass
class Ledger:
    """Counts of one run over a batch of texts; rows are summed over the texts.

    Attributes:
        costs: of the model's parts.
        batch: texts.
        position_bytes: keys and values of one position in one layer.
        calls: model calls; `full_calls`: those that computed every row in every layer.
        row_layers: rows times layers that were computed; `full_row_layers`: without a cache.
        flops, full_flops: operations, probes included, and without a cache.
        kv_bytes_read: keys and values that attention read.
        probe_flops: part of `flops` that only the method itself needed.
        row_layers_of: `row_layers` of each call.
        cache_bytes: keys, values and planes.
    """

    costs: Costs
    batch: int
    position_bytes: int
    cache_bytes: int = 0
    calls: int = 0
    full_calls: int = 0
    row_layers: int = 0
    full_row_layers: int = 0
    flops: int = 0
    full_flops: int = 0
    kv_bytes_read: int = 0
    probe_flops: int = 0
    row_layers_of: list[int] = field(default_factory=list)
    _length: int = 0

    def begin(self, length: int) -> None:
        """A model call over texts of so many positions begins."""
        self._length = length
        self.calls += 1
        self.full_row_layers += self.batch * length * self.costs.layers
        self.full_flops += self.batch * self.costs.call(length, length, length)
        self.row_layers_of.append(0)

    def computed(self, rows: int, span: int) -> None:
        """One layer was computed for so many rows of each text, which attended `span` positions."""
        self.row_layers_of[-1] += self.batch * rows
        self.flops += self.batch * rows * (self.costs.row + self.costs.pair * span)
        self.kv_bytes_read += self.batch * span * self.position_bytes

    def probed(self, flops: int) -> None:
        """The method spent so many operations on each text to decide."""
        self.probe_flops += self.batch * flops
        self.flops += self.batch * flops

    def end(self, predicted: int) -> None:
        """The call is over; logits of so many rows of each text were asked for."""
        self.flops += self.batch * predicted * self.costs.head
        self.row_layers += self.row_layers_of[-1]
        self.full_calls += self.row_layers_of[-1] >= self.batch * self._length * self.costs.layers

    def as_dict(self) -> dict[str, Any]:
        """Everything that was counted."""
        return {name: value for name, value in asdict(self).items() if not name.startswith("_")}
