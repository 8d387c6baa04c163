"""TokenKVCache: keys and values of a text, addressed by position."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from diffcache.kernels.rope_scatter import rope_scatter
from diffcache.schedulers.errors import TargetError

Rows = slice | Tensor
"""Positions: a range that all texts share, or int64 [b, n], one list for each text. A list may repeat itself."""


class TokenKVCache:
    """Post-RoPE keys and values in natural position order, allocated once and written in place.

    Sizes: L layers, b texts, K key/value heads, C positions (capacity), D numbers per head, S positions in use.

    Attributes:
        keys, values: [L, b, K, C, D].
        method_features: what the method stores besides, by name, [L, b, C, ...] each.
        tokens: int64 [b, C], the token that a position was last computed from; -1 before it is written.
        real: bool [b, C], False where the text is padded; padding is never attended.
        length: S; 0 until `resize` says how long the text is.

    Args:
        layers, heads, head_dim: L, K, D.
        real: bool [b, C].
        dtype: of everything that is stored.
        features: what the method stores besides: size for each position and layer, by name.

    Raises:
        TargetError: more positions than the capacity.
    """

    def __init__(
        self,
        layers: int,
        heads: int,
        head_dim: int,
        real: Tensor,
        *,
        dtype: torch.dtype,
        features: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        batch, capacity = real.shape
        shape = (layers, batch, heads, capacity, head_dim)
        # Zeros, not garbage: a masked position is still multiplied by its weight of zero.
        self.keys = torch.zeros(shape, dtype=dtype, device=real.device)
        self.values = torch.zeros_like(self.keys)
        self.method_features = {
            name: self.keys.new_zeros((layers, batch, capacity, *size))
            for name, size in (features or {}).items()
        }
        self.tokens = real.new_full((batch, capacity), -1, dtype=torch.int64)
        self.real = real.bool()
        self._layers = list(zip(self.keys, self.values, strict=True))
        self._padded = not bool(self.real.all())
        self._filled = 0  # positions 0 .. _filled - 1 are known to be written, without asking the device
        self.length = 0
        self._views = self._views_of(0)

    @property
    def capacity(self) -> int:
        return self.tokens.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and the method's features."""
        held = (self.keys, self.values, *self.method_features.values())
        return sum(t.numel() * t.element_size() for t in held)

    def resize(self, length: int) -> None:
        """The text now has so many positions."""
        if length > self.capacity:
            raise TargetError(
                f"the text has {length} positions and the cache {self.capacity}: make the cache as long as prompt "
                "and answer together."
            )
        if length != self.length:
            self.length = length
            self._filled = min(self._filled, length)
            self._views = self._views_of(length)

    def mark_padding(self, real: Tensor) -> None:
        """Which of the text's positions are padding: `real` [b, S] is False there."""
        self.real[:, : real.shape[1]] = real
        self._padded = not bool(real.all())

    def write(self, layer: int, rows: Rows, keys: Tensor, values: Tensor) -> None:
        """Stores keys and values [b, K, n, D] of these rows."""
        stored_keys, stored_values = self._layers[layer]
        at = rows if isinstance(rows, slice) else _index_into(stored_keys, rows, dim=2)
        _put(stored_keys, at, keys, dim=2)
        _put(stored_values, at, values, dim=2)

    def rotate_and_write(
        self,
        layer: int,
        rows: Rows,
        rotary: tuple[Tensor, Tensor],
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
    ) -> Tensor:
        """Stores keys and values [b, K, n, D] of these rows, the keys rotated; returns rotated queries [b, H, n, D].

        Args:
            rotary: cosine and signed sine, as `rope_scatter` takes them.
        """
        stored_keys, stored_values = self._layers[layer]
        if isinstance(rows, slice):
            stored_keys, stored_values = take(stored_keys, rows, 2), take(stored_values, rows, 2)
            return rope_scatter(queries, keys, values, *rotary, None, stored_keys, stored_values)
        return rope_scatter(queries, keys, values, *rotary, rows, stored_keys, stored_values)

    def write_features(self, name: str, layer: int, rows: Rows, features: Tensor) -> None:
        """Stores the method's features [b, n, ...] of these rows."""
        put(self.method_features[name][layer], rows, features, dim=1)

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the text, [b, K, S, D] each: views."""
        return self._views[layer]

    def features(self, name: str, layer: int) -> Tensor:
        """The method's features of the text, [b, S, ...]: a view."""
        return self.method_features[name][layer, :, : self.length]

    def note_tokens(self, rows: Rows, tokens: Tensor) -> None:
        """These rows are now computed from `tokens` [b, n] in every layer."""
        put(self.tokens, rows, tokens, dim=1)
        if isinstance(rows, slice) and rows.start <= self._filled:
            self._filled = max(self._filled, rows.stop)

    def mask(self) -> Tensor | None:
        """What may be attended, bool [b, 1, 1, S]; None where that is everything."""
        if self._filled >= self.length and not self._padded:
            return None
        return self.attendable[:, None, None, :]

    @property
    def attendable(self) -> Tensor:
        """Bool [b, S]: written, and no padding."""
        return (self.tokens[:, : self.length] >= 0) & self.real[:, : self.length]

    def dirty(self, tokens: Tensor) -> Tensor:
        """Bool [b, S]: positions whose keys and values come from another token than `tokens` [b, S] now holds."""
        length = tokens.shape[1]
        return (self.tokens[:, :length] != tokens) & self.real[:, :length]

    def _views_of(self, length: int) -> list[tuple[Tensor, Tensor]]:
        """Each layer's keys and values of the first positions, [b, K, length, D]."""
        return [(keys[:, :, :length], values[:, :, :length]) for keys, values in self._layers]


def take(source: Tensor, rows: Rows, dim: int = 1) -> Tensor:
    """The rows of `source` [b, ..., S, ...], whose dimension `dim` is positions."""
    if isinstance(rows, slice):
        return source.narrow(dim, rows.start, rows.stop - rows.start)
    return source.gather(dim, _index_into(source, rows, dim))


def put(target: Tensor, rows: Rows, new: Tensor, dim: int) -> None:
    """Writes rows of `target` in place. A repeated row must come with the same values."""
    _put(target, rows if isinstance(rows, slice) else _index_into(target, rows, dim), new, dim)


def _put(target: Tensor, at: Rows, new: Tensor, dim: int) -> None:
    if isinstance(at, slice):
        target.narrow(dim, at.start, at.stop - at.start).copy_(new)
    else:
        target.scatter_(dim, at, new.to(target.dtype))


def rows_of(wanted: Tensor) -> Tensor:
    """Positions int64 [b, n] where `wanted` [b, S] holds, ascending; short lists repeat their last position.

    A text that wants nothing gets its last position, which is never padding. One read from the device.
    """
    if len(wanted) == 1:
        found = wanted.nonzero()[None, :, 1]
        return found if found.numel() else found.new_full((1, 1), wanted.shape[1] - 1)
    counts = wanted.sum(dim=1, keepdim=True)
    n = max(int(counts.max()), 1)
    order = wanted.argsort(dim=1, descending=True, stable=True)[:, :n]
    last = torch.where(counts > 0, order.gather(1, (counts - 1).clamp(min=0)), wanted.shape[1] - 1)
    return torch.where(torch.arange(n, device=wanted.device) < counts, order, last)


def _index_into(source: Tensor, rows: Tensor, dim: int) -> Tensor:
    """Rows [b, n] as an index into dimension `dim` of `source`, the same over all its other dimensions."""
    batch, n = rows.shape
    before, behind = source.shape[1:dim], source.shape[dim + 1 :]
    alone = rows.view(batch, *[1] * len(before), n, *[1] * len(behind))
    return alone.expand(batch, *before, n, *behind)
