"""LanguageReport: what a run of a language model computed, read and held; and what it would have cost without a cache."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from diffcache.language.backbones.base import Net

NO_TICKS = "a language model is cached by token and layer, not by tick: summary() and row_layers_of say what each call computed"


NOTHING_REUSED = (
    "nothing was reused: every call computed all positions. The answer may be shorter than the block or window that is computed anew at each call: write a longer one, or "
    "choose a smaller block or window"
)


class NoTicks(NotImplementedError, AttributeError):
    """A report of ticks was asked for what it cannot tell. An AttributeError too, so that `hasattr` says no."""

    def __init__(self) -> None:
        super().__init__(NO_TICKS)


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

    row: int = 0
    pair: int = 0
    head: int = 0
    value: int = 0
    layers: int = 0

    @classmethod
    def of(cls, net: Net) -> "Costs":
        """Counted from the weights. Of a mixture of experts all experts are counted."""
        matrices = sum(p.numel() for p in net.layers[0].parameters() if p.ndim >= 2)
        value = 2 * net.width * net.kv_heads * net.head_dim
        pair = 4 * net.heads * net.head_dim
        return cls(2 * matrices, pair, 2 * net.width * net.vocabulary, value, len(net.layers))

    def call(self, rows: int, span: int, predicted: int) -> int:
        """One model call: so many rows in every layer attend `span` positions, and `predicted` rows get logits."""
        return rows * self.layers * (self.row + self.pair * span) + predicted * self.head


@dataclass
class LanguageReport:
    """The last run of an accelerated language model, counted while it runs; empty before the first. Sibling of `RunReport`.

    Rows are summed over the texts of a batch. 'Without a cache' means what the method "none" does: every row in every layer, and
    logits of the block that is written, which are all that the sampler reads. The model's own forward has logits of every row;
    to leave these out is no merit of a cache, so they count in `plain_flops` alone.

    Attributes:
        method, options: what was attached.
        costs: of the model's parts.
        batch: texts.
        position_bytes: keys and values of one position in one layer.
        cache_bytes: bytes of keys, values and whatever else the cache held.
        calls: model calls; `full_calls`: those that computed every row in every layer.
        row_layers: rows times layers that were computed; `full_row_layers`: without a cache.
        flops, full_flops: operations, the method's own included, and without a cache.
        plain_flops: operations of the model's own forward, as often called.
        kv_bytes_read: bytes of keys and values that attention read.
        probe_flops: those of `flops` that the method spent on deciding.
        row_layers_of: `row_layers` of each call.
    """

    method: str
    options: dict[str, Any]
    costs: Costs = field(default_factory=Costs)
    batch: int = 0
    position_bytes: int = 0
    cache_bytes: int = 0
    calls: int = 0
    full_calls: int = 0
    row_layers: int = 0
    full_row_layers: int = 0
    flops: int = 0
    full_flops: int = 0
    plain_flops: int = 0
    kv_bytes_read: int = 0
    probe_flops: int = 0
    row_layers_of: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Of the call that is counted: positions of a text, and layers that were computed for all of them.
        self._length = self._full_layers = 0

    @classmethod
    def of_run(cls, method: str, options: dict[str, Any], net: Net, batch: int) -> "LanguageReport":
        """Of a run that begins, over so many texts."""
        size = next(net.model.parameters()).element_size()
        return cls(method, options, Costs.of(net), batch, 2 * net.kv_heads * net.head_dim * size)

    @contextmanager
    def counting_call(self, length: int, predicted: int) -> Iterator[None]:
        """What is counted inside belongs to one model call over texts of so many positions.

        Args:
            predicted: rows of each text whose logits are read, where every row is computed.
        """
        self._length, self._full_layers = length, 0
        self.calls += 1
        self.full_row_layers += self.batch * length * self.costs.layers
        self.full_flops += self.batch * self.costs.call(length, length, predicted)
        self.plain_flops += self.batch * self.costs.call(length, length, length)
        self.row_layers_of.append(0)
        yield
        self.row_layers += self.row_layers_of[-1]
        self.full_calls += self._full_layers == self.costs.layers

    def count_layer(self, rows: int, span: int) -> None:
        """One layer was computed for so many rows of each text, which attended `span` positions."""
        self.row_layers_of[-1] += self.batch * rows
        self._full_layers += rows >= self._length
        self.flops += self.batch * rows * (self.costs.row + self.costs.pair * span)
        self.kv_bytes_read += self.batch * span * self.position_bytes

    def count_probe(self, flops: int) -> None:
        """The method spent so many operations on each text to decide."""
        self.probe_flops += self.batch * flops
        self.flops += self.batch * flops

    def count_logits(self, rows: int) -> None:
        """So many rows of each text got logits."""
        self.flops += self.batch * rows * self.costs.head

    @property
    def compute_fraction(self) -> float:
        """Operations, the method's own included, as a share of what the same calls cost without a cache; 1 before any run."""
        return self.flops / self.full_flops if self.full_flops else 1.0

    @property
    def speedup(self) -> float:
        """1 / compute_fraction: what the same calls gain where operations are all their cost."""
        return 1 / self.compute_fraction

    @property
    def notes(self) -> list[str]:
        """What the user should know."""
        if not self.calls:
            return ["no run yet"]
        return [NOTHING_REUSED] if self.full_calls == self.calls else []

    def summary(self) -> str:
        """A few lines for a person."""
        if not self.calls:
            return f"{self.method}: {self.notes[0]}"
        work = f"{self.compute_fraction:.1%} of the operations ({self.speedup:.2f}x less)"
        lines = [
            f"{self.method}: {self.calls} calls, {self.full_calls} of them in full, {work}",
            f"  {self.row_layers:,} of {self.full_row_layers:,} rows x layers computed",
            f"  {self.probe_flops / max(self.flops, 1):.1%} of the operations spent on deciding",
            f"  {self.cache_bytes / 2**20:.2f} MiB cached, {self.kv_bytes_read / 2**20:.1f} MiB of it read in all",
        ]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

    def save(self, path: str | Path) -> Path:
        """Writes everything as JSON; returns the path."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**asdict(self), "notes": self.notes}, indent=1) + "\n")
        return path

    def plot(self, path: str | Path) -> Path:
        """Refused, and so are `decisions`, `reasons` and `to_schedule`: they tell of ticks.

        Raises:
            NoTicks: (a NotImplementedError) always; the message says what there is instead.
        """
        raise NoTicks

    def to_schedule(self) -> NoReturn:
        """Refused, as `plot` is."""
        raise NoTicks

    @property
    def decisions(self) -> NoReturn:
        """Refused, as `plot` is."""
        raise NoTicks

    @property
    def reasons(self) -> NoReturn:
        """Refused, as `plot` is."""
        raise NoTicks

    def __repr__(self) -> str:
        return f"<LanguageReport {self.summary().splitlines()[0]}>"
