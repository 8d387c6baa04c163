"""Whether tokens that a cache chooses by itself earn their place: by importance (ToCa) or one of each cluster (ClusCa), in whole calls."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from diffcache.evals.experiments.rows import EVENLY, Way, measured_at, median, row_of
from diffcache.evals.testbeds import zoo
from diffcache.planning.with_rows import WithRows
from diffcache.recipes.uniform import UniformConfig
from diffcache.tokens.grids import changed_places
from diffcache.tokens.row_rule import FullCalls, RowRule, Sight, Source

HALF = 0.5


@dataclass(frozen=True)
class MostMoving:
    """The half of the tokens whose latents moved most since the tick before, per sample: importance without a look into attention.

    Attributes:
        patch: edge of a token in places of the latents.
        reverse: the other half.
    """

    patch: int
    reverse: bool = False

    def __call__(self, sight: Sight) -> Tensor:
        moved = (sight.latent.float() - sight.before.float()).square()
        if moved.ndim == 3:
            return _upper_half(moved.mean(-1), self.reverse)
        pooled = functional.avg_pool2d(moved.mean(1, keepdim=True), self.patch)[:, 0]
        return _grown(_upper_half(pooled.flatten(1), self.reverse).view_as(pooled), self.patch)


@dataclass(frozen=True)
class EverySecond:
    """A chessboard: one token of each cluster of neighbours.

    Attributes:
        patch: edge of a token in places of the latents.
    """

    patch: int

    def __call__(self, sight: Sight) -> Tensor:
        places = torch.zeros_like(changed_places(sight.latent, sight.latent))
        if places.ndim == 2:
            edge = round(places.shape[1] ** 0.5)
            places.view(-1, edge, edge)[:, ::2, ::2] = True
            places.view(-1, edge, edge)[:, 1::2, 1::2] = True
            return places
        height, width = (size // self.patch for size in places.shape[1:])
        board = (torch.arange(height)[:, None] + torch.arange(width)) % 2 == 0
        return _grown(board.expand(len(places), -1, -1), self.patch)


@dataclass(frozen=True, kw_only=True)
class ChosenRows(WithRows):
    """Every second tick computes all tokens, the others those of a source."""

    def token_rows(self, run: Any) -> RowRule:
        assert self.source is not None
        return RowRule(self.source, FullCalls(every=2))


def ways_to_draw(patch: int) -> list[Way]:
    """Tick caching, and tokens that are chosen in three ways."""
    sources: dict[str, Source] = {
        "the half that moves most": MostMoving(patch),
        "the other half (control)": MostMoving(patch, reverse=True),
        "a chessboard": EverySecond(patch),
    }
    base = UniformConfig(interval=1)
    chosen = [
        Way(f"rows: {name}", {"config": ChosenRows(base=base, source=source)})
        for name, source in sources.items()
    ]
    return [Way("speedup=2", {"speedup": 2.0}), *EVENLY, *chosen]


def drawn(testbed: str, steps: int, samples: int) -> Iterator[dict[str, Any]]:
    """One row for each way to draw: held-out prompts, medians of PSNR in dB; "truth" is a run of so many steps without any cache."""
    pipe = zoo.load(testbed)

    def call(count: int) -> dict[str, Any]:
        return zoo.sample_call(testbed, 0, count, samples)

    full = pipe(**call(steps))[0]
    patch = 1 if testbed == "flux" else int(pipe.transformer.config.patch_size)
    for row, _ in measured_at(pipe, lambda: call(steps), ways_to_draw(patch), steps, full):
        yield {key: value for key, value in row.items() if key not in ("truth", "region")}
    fewer = 3 * steps // 4
    pictures = pipe(**call(fewer))[0]
    row = row_of("fewer steps", steps, fewer / steps, "#" * fewer, pictures, full, full)
    yield {
        **{key: value for key, value in row.items() if key not in ("truth", "region")},
        "own": median(pictures, full),
    }


def _upper_half(scores: Tensor, reverse: bool) -> Tensor:
    """The larger half of each row [batch, n], or the smaller one."""
    count = int(HALF * scores.shape[1])
    chosen = scores.topk(count, dim=1, largest=not reverse).indices
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(1, chosen, True)


def _grown(places: Tensor, patch: int) -> Tensor:
    return places.repeat_interleave(patch, 1).repeat_interleave(patch, 2)
