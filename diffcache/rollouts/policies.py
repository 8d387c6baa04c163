"""Rollout policies: which of the past's tokens a chunk may see, and where they stand. Pure functions of the book.

The window counts frames: those of the past that are kept, and the chunk's own. Positions are temporal: the oldest kept frame is at 0,
and a chunk stands after all kept tokens. So they stay small, however long the video is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from diffcache.rollouts.book import Book
from diffcache.schedulers.errors import ConfigError


@dataclass(frozen=True)
class Chunk:
    """What is about to be computed, as a policy sees it.

    Attributes:
        frame: number of its first frame in the video.
        frames: how many it has.
        per_frame: tokens of a frame.
        layer: index of the attention that the book belongs to.
        layers: number of attentions.
    """

    frame: int
    frames: int
    per_frame: int
    layer: int = 0
    layers: int = 1


@dataclass(frozen=True)
class RolloutPolicy:
    """Keeps everything: a chunk sees the whole past.

    Attributes:
        name: that `rollout` knows it by.
        asks_chunk: relevance is judged by the chunk's own queries too.
    """

    name: ClassVar[str] = "everything"
    asks_chunk: ClassVar[bool] = False

    def check(self, chunk: Chunk) -> None:
        """Refuses chunks that the policy has no room for.

        Raises:
            ConfigError: which option would have to change.
        """

    def is_judging(self, book: Book, chunk: Chunk) -> bool:
        """Whether `kept` needs to know how relevant tokens are."""
        return False

    def kept(self, book: Book, chunk: Chunk, relevance: Tensor | None) -> Tensor | None:
        """Which tokens stay when a chunk begins.

        Args:
            book: of what is kept so far, [B, G, T].
            chunk: that begins.
            relevance: of the tokens, fp32 [B, G, T]; None unless `is_judging`.

        Returns:
            Their indices, int64 [B, G, n], ascending; None: all of them.
        """
        return None

    def left(self, book: Book, chunk: Chunk) -> int:
        """How many tokens stay when a chunk begins."""
        index = self.kept(book, chunk, None)
        return book.tokens if index is None else index.shape[-1]

    def places(self, book: Book, chunk: Chunk) -> Tensor:
        """Temporal positions at which the kept tokens are read, int64 [B, G, T]: frame after frame without gaps."""
        ranks = torch.arange(book.tokens) // max(chunk.per_frame, 1)
        return ranks.expand(book.frame.shape)

    def most_tokens(self, chunk: Chunk) -> int | None:
        """The most tokens that a layer holds at once, the newest chunk's included; None: no bound."""
        return None

    def most_queries(self, chunk: Chunk) -> int:
        """Tokens whose queries a layer holds at once."""
        return self.frames_of_queries() * chunk.per_frame

    def observed(self, query: Tensor, chunk: Chunk) -> Tensor | None:
        """The queries of a written chunk that later relevance is judged by, [B, H, n, D]; None for none."""
        return None

    def frames_of_queries(self) -> int:
        """Queries of so many newest frames are kept."""
        return 0

    def relevance(self, queries: Tensor, keys: Tensor, scale: float) -> Tensor:
        """How relevant kept tokens are, fp32 [B, G, T].

        Args:
            queries: [B, H, R, D], at their places.
            keys: [B, H, T, D], at theirs.
            scale: of the attention's products.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Rolling(RolloutPolicy):
    """Keeps the newest frames.

    Attributes:
        window: frames that a chunk sees, its own included.
    """

    name: ClassVar[str] = "rolling"

    window: int = 21

    def check(self, chunk: Chunk) -> None:
        if self.window <= chunk.frames:
            raise ConfigError(
                f"window={self.window} has no room for the past beside a chunk of {chunk.frames} frames: choose a larger one."
            )

    def kept(self, book: Book, chunk: Chunk, relevance: Tensor | None) -> Tensor | None:
        return _where(book, self._stays(book.frame[:1, :1], chunk))

    def _stays(self, frame: Tensor, chunk: Chunk) -> Tensor:
        """Which frames stay, bool of the same shape."""
        return frame >= chunk.frame + chunk.frames - self.window

    def most_tokens(self, chunk: Chunk) -> int | None:
        return self.window * chunk.per_frame


@dataclass(frozen=True)
class Sink(Rolling):
    """Keeps the video's first frames too (attention sinks: Xiao et al. 2023, arXiv 2309.17453).

    Attributes:
        sink: so many first frames stay.
        rephase: sinks stand right before the newest frames. Else they keep their distance in time, which grows.
    """

    name: ClassVar[str] = "sink"

    sink: int = 3
    rephase: bool = True

    def check(self, chunk: Chunk) -> None:
        super().check(chunk)
        if not 0 < self.sink < self.window - chunk.frames:
            raise ConfigError(
                f"sink={self.sink} leaves no newest frame in window={self.window} beside a chunk of {chunk.frames}: "
                "choose a smaller sink or a larger window."
            )

    def _stays(self, frame: Tensor, chunk: Chunk) -> Tensor:
        newest = frame >= chunk.frame + chunk.frames - (self.window - self.sink)
        return newest | (frame < self.sink)

    def places(self, book: Book, chunk: Chunk) -> Tensor:
        if self.rephase:
            return super().places(book, chunk)
        return book.frame - chunk.frame + book.tokens // chunk.per_frame


@dataclass(frozen=True)
class DeepSink(Sink):
    """A sink of about half the window (Deep Forcing, arXiv 2512.05081, section 3.1; published with 10 of 21 frames).

    Attributes:
        sink: 0: half of the window, rounded down.
    """

    name: ClassVar[str] = "deep-sink"

    sink: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "sink", self.sink or self.window // 2)


@dataclass(frozen=True)
class Participative(Sink):
    """Of what is neither sink nor recent, keeps the tokens that matter most (Deep Forcing, section 3.2).

    When the window is full, each layer keeps its own tokens: the sink, the most relevant ones, the recent frames. Relevance is judged
    by the queries of the chunk at its first step and of the recent frames. What is kept is read right after the sink.

    Attributes:
        budget: frames that are left then, so that budget - sink - recent frames' worth of tokens is chosen.
        recent: so many newest frames stay whole.
        score: "raw", sum of q.k over queries and heads, as published; or "mass", the sum of attention probabilities.
    """

    name: ClassVar[str] = "participative"
    asks_chunk: ClassVar[bool] = True

    sink: int = 10
    budget: int = 16
    recent: int = 4
    score: str = "raw"

    def __post_init__(self) -> None:
        if self.score not in ("raw", "mass"):
            raise ConfigError(f"score={self.score!r} is not known: choose 'raw' or 'mass'.")
        if not self.sink + self.recent <= self.budget:
            raise ConfigError(
                f"budget={self.budget} has no room for {self.sink} sink and {self.recent} recent frames: choose a larger one."
            )

    def check(self, chunk: Chunk) -> None:
        super().check(chunk)
        if self.budget + chunk.frames > self.window:
            raise ConfigError(
                f"budget={self.budget} and a chunk of {chunk.frames} frames do not fit window={self.window}: choose a smaller budget."
            )

    def is_judging(self, book: Book, chunk: Chunk) -> bool:
        return book.tokens + chunk.frames * chunk.per_frame > self.window * chunk.per_frame

    def left(self, book: Book, chunk: Chunk) -> int:
        return self.budget * chunk.per_frame if self.is_judging(book, chunk) else book.tokens

    def kept(self, book: Book, chunk: Chunk, relevance: Tensor | None) -> Tensor | None:
        if relevance is None:
            return None
        frame = book.frame.expand(relevance.shape)
        always = (frame < self.sink) | (frame >= chunk.frame - self.recent)
        score = relevance.nan_to_num(0.0).masked_fill(always, torch.inf)
        chosen = score.topk(self.budget * chunk.per_frame, -1).indices
        return chosen.sort(-1).values

    def observed(self, query: Tensor, chunk: Chunk) -> Tensor | None:
        return query

    def frames_of_queries(self) -> int:
        return self.recent

    def relevance(self, queries: Tensor, keys: Tensor, scale: float) -> Tensor:
        if self.score == "raw":
            total = (
                queries.float().sum(2, keepdim=True) @ keys.float().mT
            )  # a sum of products is the product of the sum
            return (total * scale).sum(1)
        return attention_mass(queries, keys, scale).sum(1, keepdim=True)


POLICIES: Mapping[str, type[RolloutPolicy]] = {
    kind.name: kind for kind in (RolloutPolicy, Rolling, Sink, DeepSink, Participative)
}


def policy_of(policy: RolloutPolicy | str, options: Mapping[str, Any]) -> RolloutPolicy:
    """A policy by its name and options.

    Raises:
        ConfigError: an unknown name or option, or options beside a policy that has its own.
    """
    if isinstance(policy, RolloutPolicy):
        if options:
            raise ConfigError(f"{policy} has its own options: leave out {', '.join(options)}.")
        return policy
    if not isinstance(policy, str) or policy not in POLICIES:
        raise ConfigError(f"there is no rollout policy {policy!r}: choose one of {', '.join(POLICIES)}.")
    kind = POLICIES[policy]
    known = {field.name: type(field.default) for field in fields(kind)}
    unknown = [name for name in options if name not in known]
    if unknown:
        has = f"it has {', '.join(known)}" if known else "it has none"
        raise ConfigError(f"{policy} has no option {unknown[0]!r}: {has}.")
    for name, value in options.items():
        if type(value) is not known[name] or (isinstance(value, int) and value < 0):
            raise ConfigError(f"{name}={value!r}: {policy} takes {_KINDS[known[name]]} there.")
    return kind(**options)


_KINDS: Mapping[type, str] = {int: "a whole number of frames", bool: "True or False", str: "a name"}


def attention_mass(queries: Tensor, keys: Tensor, scale: float) -> Tensor:
    """The attention that each key gets from all queries together, fp32 [B, H, T]."""
    mass = torch.zeros(keys.shape[:-1], dtype=torch.float32, device=keys.device)
    for part in torch.split(queries, 1024, 2):  # so that no matrix of all queries on all keys is made
        mass += (part.float() * scale @ keys.float().mT).softmax(-1).sum(2)
    return mass


def _where(book: Book, stays: Tensor) -> Tensor | None:
    """The indices of tokens that stay; all samples and heads keep the same ones."""
    if bool(stays.all()):
        return None
    return stays[0, 0].nonzero().flatten().expand(*book.frame.shape[:2], -1)
