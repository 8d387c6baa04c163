"""The walk of dLLM-Cache: what layers add is stored, and only the rows whose values changed are computed."""

import torch
from torch import Tensor

from diffcache.kernels.row_drift import replace_and_compare
from diffcache.language.backbones.base import Backbone
from diffcache.language.cache import Rows, TokenKVCache, put, take
from diffcache.language.ledger import Ledger
from diffcache.language.sampler.canvas import Canvas
from diffcache.language.walks.base import Walk


class FeatureWalk(Walk):
    """dLLM-Cache (arXiv 2506.06295). The residual stream goes on for all positions: input + stored change.

    The authors store the outputs of attention and MLP; their sum, the change that a layer makes, does the same with
    half of the memory.

    Attributes:
        prompt_interval, interval: calls between two refreshes of prompt and answer; layer 0 computes everything always.
        ratio: share of the answer's rows that a layer computes at other calls.
    """

    def __init__(
        self,
        net: Backbone,
        cache: TokenKVCache,
        ledger: Ledger,
        prompt_interval: int,
        interval: int,
        ratio: float,
    ) -> None:
        super().__init__(net, cache, ledger)
        self.prompt_interval = prompt_interval
        self.interval = interval
        self.ratio = ratio
        self._prompt = 0
        self._refresh_prompt = self._refresh_answer = True

    def begin(self, canvas: Canvas, full: bool) -> None:
        self._prompt = canvas.prompt
        self._refresh_prompt = full or canvas.step % self.prompt_interval == 0
        self._refresh_answer = full or canvas.step % self.interval == 0

    def run(self, hidden: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        mask = self.cache.mask()
        for layer in range(len(self.net.layers)):
            chosen = self._rows(layer, hidden)
            change = self.cache.plane("changes", layer)
            passed_on = hidden + change
            if isinstance(chosen, slice) or chosen.shape[1] > 0:
                before = take(hidden, chosen)
                after = self.layer(layer, before, chosen, self.rotary(chosen), mask)
                put(change, chosen, after - before, dim=1)
                put(passed_on, chosen, after, dim=1)
            hidden = passed_on
        return hidden, rows

    def _rows(self, layer: int, hidden: Tensor) -> Rows:
        """What this layer computes."""
        answer = slice(self._prompt, self.cache.length)
        if layer == 0 or (self._refresh_prompt and self._refresh_answer):
            return self.everything()
        if self._refresh_answer:
            return answer
        changed = self._changed(layer, hidden, answer)
        if not self._refresh_prompt:
            return changed
        prompt = torch.arange(self._prompt, device=hidden.device).expand(hidden.shape[0], -1)
        return torch.cat([prompt, changed], dim=1)

    def _changed(self, layer: int, hidden: Tensor, answer: slice) -> Tensor:
        """The answer's rows [b, n] whose values changed most since the last call; stores all of its values."""
        new = self.net.values(layer, take(hidden, answer))
        similarity = replace_and_compare(take(self.cache.values[layer], answer, dim=2), new)
        size = answer.stop - answer.start
        self.ledger.probed(size * self.ledger.costs.value)
        chosen: Tensor = similarity.topk(int(self.ratio * size), dim=1, largest=False).indices
        return chosen.add(answer.start)
