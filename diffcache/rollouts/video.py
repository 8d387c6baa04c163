"""One video in the making: what is kept of each attention, and the calls that read and write it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diffcache.hooks.attention_calls import AttentionCall
from diffcache.host.call import Call
from diffcache.rollouts import saved
from diffcache.rollouts.attending import (
    Reading,
    Seen,
    Writing,
    computed_in_full,
)
from diffcache.rollouts.history import LayerHistory
from diffcache.rollouts.learning import Learned, learn
from diffcache.rollouts.memory import RolloutMemory, RolloutPlan, Wanted
from diffcache.rollouts.policies import Chunk, RolloutPolicy
from diffcache.rollouts.prepared import Prepared
from diffcache.schedulers.errors import ConfigError, DiffcacheError


class Rollout:
    """One video in the making. Call it as the denoiser; see `rollout`.

    Args:
        denoiser: not compiled.
        policy: what is kept.
        wanted: how it is stored.
        memory: where its bytes are declared.

    Attributes:
        frames: so many latent frames have been written.
        learned: how the denoiser rolls out; None before the first chunk.
        planned: what it holds at most; None before the first chunk.
        layers: the past of each attention.
    """

    def __init__(
        self, denoiser: nn.Module, policy: RolloutPolicy, wanted: Wanted, memory: RolloutMemory
    ) -> None:
        self.denoiser = denoiser
        self.policy = policy
        self.wanted = wanted
        self.memory = memory
        self.frames = 0
        self.learned: Learned | None = None
        self.planned: RolloutPlan | None = None
        self.layers: list[LayerHistory] = []
        self._unjudged: set[int] = set()  # layers that have yet to choose by the chunk's own queries
        self._loaded: saved.Saved | None = None
        self._begun: int | None = None  # the policy has chosen what stays, for a chunk of so many frames
        self._closed = False

    @property
    def cache_bytes(self) -> int:
        """Bytes that are kept now."""
        return sum(layer.nbytes for layer in self.layers)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """A call of the denoiser that sees the past.

        Raises:
            TargetError, ConfigError: as `rollout`; ConfigError also for no chunk, or one of another height, width or batch than the
                first.
        """
        prepared = self._prepared(args, kwargs)
        reading = Reading(prepared.learned.sites, lambda i, call: self._seen(i, call, prepared))
        with prepared.attended(reading.attend), self._reading():
            return self.denoiser(*args, **kwargs)

    def write(self, *args: Any, **kwargs: Any) -> Any:
        """The clean pass: a call of the denoiser on the finished chunk, whose keys and values become the past.

        If it raises, nothing is written.
        """
        prepared = self._prepared(args, kwargs)
        writing = Writing(prepared.learned.sites, lambda i, call: self._seen(i, call, prepared))
        with computed_in_full(self.denoiser), prepared.attended(writing.attend), self._reading():
            output = self.denoiser(*args, **kwargs)
        self._add(writing.written, prepared)
        return output

    def plan(self, *args: Any, **kwargs: Any) -> RolloutPlan:
        """What would be kept at most, from the arguments of a chunk's call. Nothing is written."""
        self._learn(args, kwargs)
        assert self.planned is not None
        return self.planned

    def save(self, folder: Path | str) -> None:
        """Writes the past to a folder, for `load` in another process. A chunk that was not written is not part of it."""
        self._check_open()
        if self._loaded is not None:
            raise DiffcacheError("what was loaded has not been used yet: make a chunk before saving again.")
        sizes = () if self.learned is None else self.learned.form.sizes
        saved.save(saved.Past(self.frames, self.layers, sizes), self.policy, Path(folder))

    def load(self, folder: Path | str) -> None:
        """Goes on with a past that `save` wrote. The next call is learned from, as the first of a rollout is.

        Raises:
            ScheduleError: nothing readable is saved there, or it was saved with another policy; at the next call also if it
                belongs to another denoiser, batch or size, or was stored in another format.
        """
        self._check_open()
        past = saved.load(Path(folder), self.policy)
        self._forget()
        self._loaded, self.frames = past, past.facts["frames"]

    def close(self) -> None:
        """Forgets everything. The rollout cannot be called any more."""
        self._closed = True
        self._forget()

    def _forget(self) -> None:
        for layer in self.layers:
            layer.clear()
        self.layers, self._loaded = [], None
        self.learned = self.planned = None
        self.memory.free(self)
        self.frames, self._begun = 0, None
        self._unjudged.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise DiffcacheError("this rollout is over: call it inside its with block.")

    def _latent(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """The chunk that a call is of."""
        latents = Call.of(self.denoiser, args, kwargs).latents
        if not latents:
            raise ConfigError(
                "a call of a rollout is one of its denoiser, and this one has no latents: pass a chunk's, [batch, channels, frames, "
                "height, width], its time and its conditions."
            )
        return latents[0]

    def _learn(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Learned:
        self._check_open()
        if self.learned is None:
            self._latent(args, kwargs)
            learned = learn(self.denoiser, args, kwargs)
            chunk = self._chunk(learned, learned.form.frames)
            self.policy.check(chunk)
            self.planned = self.memory.declare(
                self, self.wanted.plans(self.policy, chunk, learned.form.shape)
            )
            self.layers = self._layers(learned, self.planned)
            self.learned = learned
        return self.learned

    def _layers(self, learned: Learned, planned: RolloutPlan) -> list[LayerHistory]:
        """The past of each attention: none, or the one that was loaded."""
        format = planned.format()
        if self._loaded is None:
            return [LayerHistory(format, learned.form.shape) for _ in learned.sites]
        form = learned.form
        layers = saved.restored(self._loaded, format, form.shape, len(learned.sites), form.sizes)
        self._loaded = None
        return layers

    def _chunk(self, learned: Learned, frames: int, layer: int = 0) -> Chunk:
        return Chunk(self.frames, frames, learned.form.per_frame, layer, len(learned.sites))

    def _prepared(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Prepared:
        """What a chunk's call needs. At its first call the policy chooses what stays."""
        learned = self._learn(args, kwargs)
        latent = self._latent(args, kwargs)
        if (latent.shape[0], *latent.shape[3:]) != learned.form.sizes:
            raise ConfigError(
                f"this rollout has chunks of batch, height and width {learned.form.sizes}, and these are of shape "
                f"{tuple(latent.shape)}: begin another rollout."
            )
        chunk = self._chunk(learned, latent.shape[2])
        if self._begun != chunk.frames:
            self.policy.check(chunk)
            with self._reading():
                self._begin(learned, chunk)
        book = self.layers[min(self._unjudged, default=0)].book
        left = self.policy.left(book, chunk) if self._unjudged else book.tokens
        return Prepared(learned, chunk, left // chunk.per_frame)

    def _begin(self, learned: Learned, chunk: Chunk) -> None:
        """The policy chooses what stays; where it asks the chunk's own queries, at each attention of the chunk's first call."""
        self._unjudged.clear()
        for i, layer in enumerate(self.layers):
            of_layer = replace(chunk, layer=i)
            if not self.policy.is_judging(layer.book, of_layer):
                index = self.policy.kept(layer.book, of_layer, None)
                if index is not None:
                    layer.choose(index)
            elif self.policy.asks_chunk:
                self._unjudged.add(i)
            else:
                self._judge(i, Prepared(learned, chunk, 0), None)
        self._begun = chunk.frames

    def _seen(self, i: int, call: AttentionCall, prepared: Prepared) -> Seen | None:
        """The past of an attention, turned to where it stands now."""
        layer = self.layers[i]
        if layer.book.tokens == 0:
            return None
        if i in self._unjudged:
            self._judge(i, prepared, call.query)
        key, value = layer.rows.read(layer.shape)
        return Seen(
            self._turned(key, self.policy.places(layer.book, prepared.chunk) - layer.book.place), value
        )

    def _judge(self, i: int, prepared: Prepared, query: Tensor | None) -> None:
        """Keeps what is relevant to the queries of the newest frames, and to the chunk's own."""
        layer, chunk = self.layers[i], replace(prepared.chunk, layer=i)
        place = layer.book.tokens // chunk.per_frame  # where the chunk would stand if everything stayed
        key = self._turned(
            layer.rows.read(layer.shape)[0], self.policy.places(layer.book, chunk) - layer.book.place
        )
        queries = []
        if layer.query_book.tokens:
            now = place - chunk.frame + layer.query_book.frame
            queries.append(self._turned(layer.queries.read(layer.shape)[0], now - layer.query_book.place))
        if query is not None:
            by = torch.full((1, 1, query.shape[2]), place - prepared.start)
            queries.append(self._turned(query, by))
        if queries[0].shape[1] != key.shape[1]:
            raise ConfigError(
                f"{self.policy.name} judges keys by queries, and here several queries share a key: choose another policy."
            )
        scale = prepared.learned.form.scale
        relevance = self.policy.relevance(torch.cat(queries, 2), key, scale).detach().cpu()
        index = self.policy.kept(layer.book, chunk, relevance)
        layer.book = layer.book.weighed(relevance)
        if index is not None:
            layer.choose(index)
        self._unjudged.discard(i)

    def _turned(self, keys: Tensor, by: Tensor) -> Tensor:
        rotary = None if self.learned is None else self.learned.rotary
        return keys if rotary is None else rotary.turned(keys, by)

    def _add(self, written: Mapping[int, AttentionCall], prepared: Prepared) -> None:
        """The chunk becomes the past."""
        chunk = prepared.chunk
        since = chunk.frame + chunk.frames - self.policy.frames_of_queries()
        try:
            with torch.no_grad():
                for i, layer in enumerate(self.layers):
                    call = written[i]
                    layer.write(call.key, call.value, prepared.book(call.key.shape[2]))
                    query = self.policy.observed(call.query, replace(chunk, layer=i))
                    if query is not None:
                        layer.write_queries(query, prepared.book(query.shape[2]), since)
        except BaseException:
            self.close()  # some layers have the chunk and others do not
            raise
        self.frames += chunk.frames
        self._begun = None

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Copies on the device that were made for a call are dropped after it."""
        try:
            yield
        finally:
            for layer in self.layers[:1]:
                layer.rows.format.memory.end_call()
