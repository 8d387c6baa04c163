"""Whether tokens that a cache chooses by itself earn their place: by importance (ToCa) or one of each cluster (ClusCa), in whole calls."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional

from diffcache.engine.some_tokens import SomeTokens
from diffcache.evals.experiments.ways import CACHED, Figures, Scene, Way, measured_at
from diffcache.evals.testbeds import zoo
from diffcache.hooks.attention_calls import AttentionCall
from diffcache.recipes.uniform import UniformConfig
from diffcache.recipes.with_rows import WithRows
from diffcache.rollouts.policies import attention_mass
from diffcache.tokens import passes
from diffcache.tokens.grids import changed_places
from diffcache.tokens.row_rule import FullCalls, RowRule, Sight, Source

HALF = 0.5
TOCA = {"share": 0.1, "every": 4}
"""As published for FLUX: nine of ten tokens are reused, and every fourth tick is computed in full."""

SELDOM_BEFORE = 0.25
"""How much a token's score grows with each tick that passes it over, over the scores' standard deviation."""

Score = Callable[[AttentionCall], Tensor]
"""Of keys' tokens in one attention, [batch, keys]."""


def norms_of_keys(call: AttentionCall) -> Tensor:
    """ToCa's score where attention maps are not to be had."""
    norms: Tensor = call.key.float().norm(dim=-1).mean(1)
    return norms


def attention_received(call: AttentionCall) -> Tensor:
    """ToCa's first score: how much all queries attend to a token."""
    return attention_mass(call.query, call.key, call.query.shape[-1] ** -0.5).mean(1)


@dataclass(eq=False)
class Importance:
    """The tokens of the largest score in the newest full call, and by turns those that were passed over.

    Attributes:
        score: of a token in an attention; scores are added up over attentions, each over its mean.
        patch: edge of a token in places of the latents.
        share: of the tokens that move.
    """

    score: Score
    patch: int
    share: float
    scores: Tensor | None = None
    tick: int = -1
    passed_over: Tensor | None = None

    def __call__(self, sight: Sight) -> Tensor:
        assert self.scores is not None
        moving = sight.moving if sight.moving.ndim == 2 else _pooled(sight.moving, self.patch).flatten(1)
        scores = self.scores[:, : moving.shape[1]]
        if self.passed_over is None:
            self.passed_over = torch.zeros_like(scores)
        ranked = scores / scores.std(1, keepdim=True) + SELDOM_BEFORE * self.passed_over
        ranked = ranked.masked_fill(~moving, -torch.inf)
        chosen = _highest(ranked, max(round(self.share * int(moving[0].sum())), 1))
        self.passed_over = torch.where(chosen, 0.0, self.passed_over + 1)
        if sight.latent.ndim == 3:
            return chosen
        height, width = (size // self.patch for size in sight.latent.shape[-2:])
        return _grown(chosen.view(-1, height, width), self.patch)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Adds up the scores of full calls, and asks for tokens at every tick anew."""
        attend, rows_for = passes._Keeping.attend, SomeTokens._rows_for
        source = self

        def heard(keeping: Any, call: AttentionCall) -> Tensor:
            sequence = keeping._sequences[keeping._next] if keeping._next < len(keeping._sequences) else None
            if sequence is not None:
                own = source.score(call)[:, sequence.places]
                source._add(own / own.mean(1, keepdim=True), keeping._owner.tick)
            return attend(keeping, call)

        def asked_anew(execution: Any, *args: Any) -> Any:
            execution._chosen = {}
            return rows_for(execution, *args)

        with (
            patch.object(passes._Keeping, "attend", heard),
            patch.object(SomeTokens, "_rows_for", asked_anew),
        ):
            yield

    def _add(self, scores: Tensor, tick: int) -> None:
        if tick != self.tick or self.scores is None or scores.shape != self.scores.shape:
            self.scores, self.passed_over, self.tick = torch.zeros_like(scores), None, tick
        self.scores = self.scores + scores


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
        sign = -1 if self.reverse else 1
        if moved.ndim == 3:
            scores = (sign * moved.mean(-1)).masked_fill(~sight.moving, -torch.inf)
            return _highest(scores, int(HALF * int(sight.moving[0].sum())))
        pooled = functional.avg_pool2d(moved.mean(1, keepdim=True), self.patch)[:, 0]
        chosen = _highest(sign * pooled.flatten(1), pooled[0].numel() // 2)
        return _grown(chosen.view_as(pooled), self.patch)


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
            own = sight.moving[0]
            edge = round(int(own.sum()) ** 0.5)
            places[:, own] = self._board(edge, edge).flatten().expand(len(places), -1)
            return places
        height, width = (size // self.patch for size in places.shape[1:])
        return _grown(self._board(height, width).expand(len(places), -1, -1), self.patch)

    def _board(self, height: int, width: int) -> Tensor:
        return (torch.arange(height)[:, None] + torch.arange(width)) % 2 == 0


@dataclass(frozen=True, kw_only=True)
class ChosenRows(WithRows):
    """Every so many ticks compute all tokens, the others those of a source.

    Attributes:
        every: so many.
    """

    every: int = 2

    def token_rows(self, run: Any) -> RowRule:
        assert self.source is not None
        return RowRule(self.source, FullCalls(every=self.every))


def ways_to_draw(patch: int) -> list[Way]:
    """Tick caching, and tokens that are chosen in several ways."""
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
    for name, score in {"keys": norms_of_keys, "attention": attention_received}.items():
        for said, share, every in (("ToCa", TOCA["share"], TOCA["every"]), ("half", HALF, 2)):
            source = Importance(score, patch, share)
            config = ChosenRows(base=base, source=source, every=int(every))
            chosen.append(Way(f"rows: {said} by {name}", {"config": config}, source.listening))
    return [*CACHED, *chosen]


def drawn(testbed: str, steps: int, samples: int) -> Iterator[Figures]:
    """One row for each way to draw: held-out prompts; intervals of PSNR in dB."""
    pipe = zoo.load(testbed)
    patch_size = 1 if testbed == "flux" else int(pipe.transformer.config.patch_size)

    def call(count: int) -> dict[str, Any]:
        return zoo.sample_call(testbed, 0, count, samples)

    yield from (row for row, _ in measured_at(Scene(pipe, call), ways_to_draw(patch_size), steps))


def _highest(scores: Tensor, count: int) -> Tensor:
    """The places of the largest scores in each row [batch, n], bool."""
    chosen = scores.topk(count, dim=1).indices
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(1, chosen, True)


def _pooled(places: Tensor, patch: int) -> Tensor:
    """Tokens any place of which is marked, bool [batch, height / patch, width / patch]."""
    return functional.max_pool2d(places[:, None].float(), patch)[:, 0] > 0


def _grown(places: Tensor, patch: int) -> Tensor:
    return places.repeat_interleave(patch, 1).repeat_interleave(patch, 2)
