"""The walk of dLLM-Cache: what layers add is stored, and only the rows whose values changed are computed."""

from dataclasses import dataclass

import torch
from torch import Tensor

from diffcache.kernels.row_drift import replace_and_compare
from diffcache.language.backbones.base import Backbone
from diffcache.language.cache import Rows, TokenKVCache, put, take
from diffcache.language.report import LanguageReport
from diffcache.language.sampler.canvas import Canvas
from diffcache.language.walks.base import LayerWalk


@dataclass(frozen=True)
class Refreshes:
    """When rows are computed again.

    Attributes:
        prompt_interval, interval: calls between two refreshes of prompt and answer.
        ratio: share of the answer's rows that a layer computes at other calls.
    """

    prompt_interval: int
    interval: int
    ratio: float


class ValueDriftWalk(LayerWalk):
    """dLLM-Cache (arXiv 2506.06295). Each layer passes all positions on: its input + the change that it has stored.

    Layer 0 always computes everything. The authors store the outputs of attention and MLP; their sum, the change that a
    layer makes, does the same with half of the memory.
    """

    def __init__(
        self, net: Backbone, cache: TokenKVCache, report: LanguageReport, refreshes: Refreshes
    ) -> None:
        super().__init__(net, cache, report)
        self.refreshes = refreshes

    def through_layers(self, canvas: Canvas, rows: Rows, full: bool) -> tuple[Tensor, Rows]:
        prompt = full or canvas.step % self.refreshes.prompt_interval == 0
        answer = full or canvas.step % self.refreshes.interval == 0
        hidden = self.embed(canvas, rows)
        for layer in range(len(self.net.layers)):
            everything = layer == 0 or (prompt and answer)
            chosen = (
                self.all_rows() if everything else self._rows(layer, hidden, canvas.prompt, prompt, answer)
            )
            change = self.cache.features("changes", layer)
            passed_on = hidden + change
            if isinstance(chosen, slice) or chosen.shape[1] > 0:
                before = take(hidden, chosen)
                after = self.layer(layer, before, chosen, self.rotary(chosen), self.cache.mask(chosen))
                put(change, chosen, after - before, dim=1)
                put(passed_on, chosen, after, dim=1)
            hidden = passed_on
        return hidden, rows

    def _rows(self, layer: int, hidden: Tensor, size: int, prompt: bool, answer: bool) -> Rows:
        """What a layer computes when the prompt, of `size` positions, or the answer is refreshed, or neither."""
        behind = slice(size, self.cache.length)
        if answer:
            return behind
        changed = self._changed(layer, hidden, behind)
        if not prompt:
            return changed
        return torch.cat([torch.arange(size, device=hidden.device).expand(len(hidden), -1), changed], dim=1)

    def _changed(self, layer: int, hidden: Tensor, answer: slice) -> Tensor:
        """The answer's rows [b, n] whose values changed most since the last call; stores all of its values, unless no row is wanted."""
        if self.refreshes.ratio == 0:
            return torch.zeros(len(hidden), 0, dtype=torch.int64, device=hidden.device)
        new = self.net.values(layer, take(hidden, answer))
        similarity = replace_and_compare(take(self.cache.read(layer)[1], answer, dim=2), new)
        size = answer.stop - answer.start
        self.report.count_probe(size * self.report.costs.value)
        chosen: Tensor = similarity.topk(int(self.refreshes.ratio * size), dim=1, largest=False).indices
        return chosen.add(answer.start)
