"""A policy for SANA-WM's refiner, which keeps keys and values itself.

Diffusers' refiner has a sink (`sink_size`), read right before the newest frames (`kv_max_frames`): it rolls with a deep sink of its own.
Inside `refiner_history` its layers keep other tokens of the past instead of the newest, and as many.

Dimensions: B samples, H heads, T tokens, C channels of all heads together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from diffcache.hooks.attention_calls import AttentionCall
from diffcache.hooks.module_calls import ModuleCalls
from diffcache.rollouts.attending import AttentionSite, attended
from diffcache.rollouts.book import Book, joined
from diffcache.rollouts.policies import Chunk, Participative
from diffcache.schedulers.errors import ConfigError, TargetError

BUILDER = "build_rotary_emb_for_absolute_positions"


class Places:
    """Where the refiner places frames.

    Attributes:
        newest: frames of the block that rotary rows were last made for.
        per_frame: tokens of a frame.
    """

    def __init__(self) -> None:
        self.newest: list[int] = []
        self.per_frame = 0
        self._turns: dict[int, Tensor] = {}

    def note(self, frames: Sequence[int], rows: tuple[Tensor, Tensor]) -> None:
        """Rotary rows have been made: cosines and sines [B, T, C] of neighbouring channels, or [B, H, T, D / 2] of halves."""
        self.newest, tokens = list(frames), rows[0].shape[-2]
        if not tokens:
            return
        self.per_frame = tokens // len(frames)
        cos, sin = (part[0].movedim(-2, 0)[:: self.per_frame].double().cpu() for part in rows)
        turns = torch.complex(cos, sin) if cos.ndim == 3 else torch.complex(cos, sin)[..., ::2]
        self._turns.update(zip(frames, turns, strict=True))

    def turned(self, keys: Tensor, frames: Tensor, places: Tensor) -> Tensor:
        """Keys [B, T, C] of some frames, int64 [B, T], as they would be at the places of others."""
        if torch.equal(frames, places):
            return keys
        moves = torch.stack((frames, places), -1).flatten(0, 1)
        distinct, which = torch.unique(moves, dim=0, return_inverse=True)
        turns = torch.stack([self._turns[p] / self._turns[f] for f, p in distinct.tolist()])
        turn = turns.to(torch.complex64)[which.view(frames.shape)].to(keys.device)
        if turn.ndim == 3:
            pairs = torch.view_as_complex(keys.float().view(*turn.shape, 2))
            return torch.view_as_real(pairs * turn).flatten(2).to(keys.dtype)
        batch, tokens, heads, half = turn.shape
        first, second = keys.float().view(batch, tokens, heads, 2, half).unbind(3)
        halves = torch.complex(first, second) * turn
        return torch.stack((halves.real, halves.imag), 3).flatten(2).to(keys.dtype)


class HistoryLayer:
    """The cache of a layer: its history is ours, all else is the refiner's.

    Keys are kept as they were computed, and turned when they are read.

    Args:
        own: the refiner's.
        policy: what is kept.
        places: where frames are placed.

    Attributes:
        query: of the newest attention, [B, H, n, D].
    """

    def __init__(self, own: Any, policy: Participative, places: Places) -> None:
        self.own, self.policy, self.places = own, policy, places
        self.query: Tensor | None = None
        self.clear()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)

    def clear(self) -> None:
        self.own.clear()
        self.book, self.parts = Book.empty(), tuple[Tensor, ...]()

    def get_history(self) -> tuple[Tensor, Tensor] | None:
        """Keys, where they stand now, and values, [B, T, C]; None where there are none."""
        if not self.parts:
            return None
        chunk = self._next()
        places = self.policy.places(self.book, chunk) + chunk.frame - self.book.tokens // chunk.per_frame
        return self.places.turned(self.parts[0], self.book.frame[:, 0], places[:, 0]), self.parts[1]

    def store_history(self, key: Tensor, value: Tensor) -> None:
        """The refiner adds a block to the history, or cuts it down to the newest tokens: we to as many, by the policy."""
        had, given = self.book.tokens, key.shape[1]
        if given < had:
            self._cut(given)
            return
        frames = torch.tensor(self.places.newest).repeat_interleave(self.places.per_frame)
        new = tuple(part[:, had:] for part in (key, value))
        self.parts = tuple(torch.cat(pair, 1) for pair in zip(self.parts, new, strict=True)) if had else new
        self.book = joined((self.book, Book.of_chunk(frames, frames, key.shape[0])))

    def _next(self) -> Chunk:
        """The block after the newest in the history."""
        return Chunk(int(self.book.frame.max()) + 1, len(self.places.newest), self.places.per_frame)

    def _cut(self, tokens: int) -> None:
        chunk, history = self._next(), self.get_history()
        sink = self.own.get_sink()
        sinks = 0 if sink is None else sink[0].shape[1] // chunk.per_frame
        frames = tokens // chunk.per_frame
        if (sinks, sinks + frames) != (self.policy.sink, self.policy.budget):
            raise ConfigError(
                f"the refiner was called with sink_size={sinks} and kv_max_frames={sinks + frames}, and the policy has "
                f"sink={self.policy.sink} and budget={self.policy.budget}: give both the same."
            )
        assert history is not None
        assert self.query is not None
        heads = self.query.shape[1]
        keys = history[0].view(*history[0].shape[:2], heads, -1).transpose(1, 2)
        relevance = self.policy.relevance(self.query, keys, self.query.shape[-1] ** -0.5).cpu()
        of_history = replace(self.policy, sink=0, budget=frames)
        index = of_history.kept(self.book, chunk, relevance)
        assert index is not None
        self.book = self.book.chosen(index)
        at = index[:, 0, :, None].to(keys.device)
        self.parts = tuple(part.gather(1, at.expand(len(part), -1, part.shape[-1])) for part in self.parts)


@contextmanager
def refiner_history(transformer: nn.Module, policy: Participative) -> Iterator[None]:
    """Inside, SANA-WM's refiner keeps the most relevant tokens of its past instead of the newest.

        with refiner_history(refiner.transformer, Participative(sink=1, budget=11, recent=4)):
            video = refiner(latents, "a street", fps=16.0, sink_size=1, kv_max_frames=11)

    Relevance is judged by the newest block's clean queries. A rolling cache and sinks are the refiner's own: `kv_max_frames`, `sink_size`.

    Args:
        transformer: the refiner's, a `SanaWMLTX2RefinerTransformer3DModel`.
        policy: its `sink` and `budget` are the call's `sink_size` and `kv_max_frames`.

    Raises:
        TargetError: it is another transformer.
        ConfigError: the policy is none that chooses by relevance; at the call also if it does not fit the call's arguments.
    """
    if not hasattr(transformer, BUILDER):
        raise TargetError(
            f"{type(transformer).__name__} is not SANA-WM's refiner: for causal video models there is `rollout`."
        )
    if not isinstance(policy, Participative):
        raise ConfigError(
            f"{policy.name} is what the refiner does itself (sink_size=, kv_max_frames=): give a participative policy."
        )
    places = Places()
    blocks: Any = transformer.transformer_blocks
    attentions = {f"{i}": block.attn1 for i, block in enumerate(blocks)}
    layers: dict[str, HistoryLayer] = {}

    def begin(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        cache = kwargs.get("kv_cache")
        if cache is None or any(isinstance(layer, HistoryLayer) for layer in cache.layer_caches):
            return
        cache.layer_caches[:] = [HistoryLayer(own, policy, places) for own in cache.layer_caches]
        layers.update(zip(attentions, cache.layer_caches, strict=True))

    def attend(site: AttentionSite, call: AttentionCall) -> Tensor:
        if site.module in layers:
            layers[site.module].query = call.query
        return call.compute()

    build = getattr(transformer, BUILDER)

    def noted(batch_size: int, frame_positions: list[int], *args: Any, **kwargs: Any) -> Any:
        rows = build(batch_size, frame_positions, *args, **kwargs)
        places.note(frame_positions, rows)
        return rows

    with ExitStack() as stack:
        handle = transformer.register_forward_pre_hook(begin, with_kwargs=True)
        stack.callback(handle.remove)
        setattr(transformer, BUILDER, noted)
        stack.callback(delattr, transformer, BUILDER)
        stack.enter_context(attended(ModuleCalls(attentions), attend))
        yield
