"""Declared bytes: what a rollout will hold is known at its first chunk, and kept within what one or several rollouts may hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from diffcache.rollouts.history import TokenShape, bytes_per_token
from diffcache.rollouts.policies import Chunk, RolloutPolicy
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.numbers_given import check_bytes
from diffcache.store.formats import DTYPES, Format, format_of, narrower_than
from diffcache.store.placement import HostMemory

LAYERS_ON_THE_WAY = 2
"""Of so many layers what is kept in host memory is on the device at once: the one that is read, and the next."""


@dataclass(frozen=True)
class RolloutPlan:
    """What a rollout will hold at most.

    Attributes:
        layers: attentions whose keys and values are kept.
        tokens: the most that each of them holds; None where the policy has no bound.
        queries: tokens whose queries each of them holds.
        cache_dtype: the format; None for as computed.
        on_host: it is in host memory.
        token_bytes, query_bytes: of a token in one layer, all samples together.
    """

    layers: int
    tokens: int | None
    queries: int
    cache_dtype: str | None
    on_host: bool
    token_bytes: int
    query_bytes: int

    @property
    def cache_bytes(self) -> int | None:
        """The most bytes that are kept, wherever they are; None where the policy has no bound."""
        if self.tokens is None:
            return None
        return self.layers * (self.tokens * self.token_bytes + self.queries * self.query_bytes)

    @property
    def device_bytes(self) -> int | None:
        """The most bytes of these on the device."""
        whole = self.cache_bytes
        if whole is None or not self.on_host:
            return whole
        return whole * min(LAYERS_ON_THE_WAY, self.layers) // self.layers

    def format(self) -> Format:
        """Of the stores."""
        return format_of(self.cache_dtype, HostMemory() if self.on_host else None)

    def __str__(self) -> str:
        where = "host memory" if self.on_host else "the device"
        size = "without a bound" if self.cache_bytes is None else f"{self.cache_bytes / 2**20:.1f} MiB"
        tokens = "all" if self.tokens is None else f"at most {self.tokens}"
        return f"{size} in {where}, as {self.cache_dtype or 'computed'}: {tokens} tokens in each of {self.layers} attentions"


@dataclass(frozen=True)
class Wanted:
    """How a rollout is to be stored.

    Attributes:
        cache_dtype: "bfloat16", "float16", "int8", "float8", or None for as computed.
        cache_device: "cpu" for host memory; None for the device that computes.
    """

    cache_dtype: str | None = None
    cache_device: str | None = None

    def __post_init__(self) -> None:
        if self.cache_dtype is not None and self.cache_dtype not in DTYPES:
            raise ConfigError(
                f"cache_dtype={self.cache_dtype!r} is not known: choose one of {', '.join(DTYPES)}."
            )
        if self.cache_device not in (None, "cpu"):
            raise ConfigError(
                f"cache_device={self.cache_device!r} is not known: choose 'cpu' or leave it out."
            )

    def plans(self, policy: RolloutPolicy, chunk: Chunk, shape: TokenShape) -> Iterator[RolloutPlan]:
        """The plan that is asked for, and then smaller ones: fewer bits, then host memory."""
        for on_host in [True] if self.cache_device == "cpu" else [False, True]:
            for name in (self.cache_dtype, *narrower_than(self.cache_dtype)):
                yield _plan(policy, chunk, shape, name, on_host)


class RolloutMemory:
    """So many bytes on the device, which several rollouts share.

    Args:
        max_cache_bytes: None for no bound.
    """

    def __init__(self, max_cache_bytes: int | None = None) -> None:
        if max_cache_bytes is not None:
            check_bytes(max_cache_bytes)
        self.max_cache_bytes = max_cache_bytes
        self._declared: dict[int, int] = {}

    @property
    def declared(self) -> int:
        """Bytes that its rollouts may come to hold on the device."""
        return sum(self._declared.values())

    def declare(self, owner: object, plans: Iterator[RolloutPlan]) -> RolloutPlan:
        """The first plan for which there is room; its bytes are the owner's until `free`.

        Raises:
            ConfigError: there is room for none.
        """
        smallest: int | None = None
        for plan in plans:
            needed = plan.device_bytes
            if self.max_cache_bytes is None:
                self._declared[id(owner)] = needed or 0
                return plan
            if needed is None:
                raise ConfigError("max_cache_bytes= needs a policy with a window: this one keeps everything.")
            if self.declared + needed <= self.max_cache_bytes:
                self._declared[id(owner)] = needed
                return plan
            smallest = needed if smallest is None else min(smallest, needed)
        left = (self.max_cache_bytes or 0) - self.declared
        raise ConfigError(
            f"max_cache_bytes={self.max_cache_bytes} has {left} bytes left, and a rollout cannot do with less than {smallest}: "
            "allow more, or choose a smaller window."
        )

    def free(self, owner: object) -> None:
        """The owner holds nothing any more."""
        self._declared.pop(id(owner), None)


def _plan(
    policy: RolloutPolicy, chunk: Chunk, shape: TokenShape, name: str | None, on_host: bool
) -> RolloutPlan:
    dtype = None if name is None else DTYPES[name]
    key, value = (
        bytes_per_token(shape, dtype, channels) for channels in (shape.channels, shape.value_channels)
    )
    return RolloutPlan(
        layers=chunk.layers,
        tokens=policy.most_tokens(chunk),
        queries=policy.most_queries(chunk),
        cache_dtype=name,
        on_host=on_host,
        token_bytes=key + value,
        query_bytes=key,
    )
