"""TokenKVCache: keys and values of a text, addressed by position."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from diffcache.kernels.rope_scatter import rope_scatter
from diffcache.language.backbones.base import sees_something
from diffcache.schedulers.errors import TargetError

Rows = slice | Tensor
"""Positions: a range that all texts share, or int64 [b, n], one list for each text. A list may repeat itself."""


class TokenKVCache:
    """Post-RoPE keys and values in natural position order, allocated at a layer's first write and then written in place.

    Sizes: b texts, K key/value heads, C positions (capacity), D numbers per head, S positions in use.

    Attributes:
        method_features: what the method stores besides, by name, [L, b, C, ...] each.
        tokens: int64 [b, C], the token that a position was last computed from; -1 before it is written.
        real: bool [b, C], False where the text is padded; padding is never attended.
        ends: int64 [C], the first position that a position does not see; None where each sees all.
        length: S; 0 until `resize` says how long the text is.

    Args:
        layers: how many.
        real: bool [b, C].
        dtype: of the method's features.
        features: what the method stores besides: size for each position and layer, by name.

    Raises:
        TargetError: more positions than the capacity.
    """

    def __init__(
        self,
        layers: int,
        real: Tensor,
        *,
        dtype: torch.dtype,
        features: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        batch, capacity = real.shape
        self.method_features = {
            name: torch.zeros((layers, batch, capacity, *size), dtype=dtype, device=real.device)
            for name, size in (features or {}).items()
        }
        self.tokens = real.new_full((batch, capacity), -1, dtype=torch.int64)
        self.real = real.bool()
        self.ends: Tensor | None = None
        self._layers: list[tuple[Tensor, Tensor] | None] = [None] * layers
        self._padded = not bool(self.real.all())
        self._filled = 0  # positions 0 .. _filled - 1 are known to be written, without asking the device
        self._last = 0  # from here on, positions see the text to its end
        self.length = 0

    @property
    def capacity(self) -> int:
        return self.tokens.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and the method's features."""
        planes = (plane for layer in self._layers if layer is not None for plane in layer)
        return sum(t.numel() * t.element_size() for t in (*planes, *self.method_features.values()))

    def resize(self, length: int) -> None:
        """The text now has so many positions."""
        if length > self.capacity:
            raise TargetError(
                f"the text has {length} positions and the cache {self.capacity}: make the cache as long as prompt "
                "and answer together."
            )
        self.length = length
        self._filled = min(self._filled, length)

    def mark_padding(self, real: Tensor) -> None:
        """Which of the text's positions are padding: `real` [b, S] is False there."""
        self.real[:, : real.shape[1]] = real
        self._padded = not bool(real.all())

    def see_in_blocks(self, size: int, stop: int) -> None:
        """Positions see nothing behind their block of so many, counted from 0; the text ends at `stop`."""
        if self.ends is None:
            positions = torch.arange(self.capacity, device=self.tokens.device)
            self.ends = (positions // size + 1) * size
        self._last = (stop - 1) // size * size

    def see_no_further(self, start: int, stop: int) -> None:
        """Positions start .. stop - 1 see nothing from `stop` on, where the text ends."""
        if self.ends is None:
            self.ends = torch.full_like(self.tokens[0], start)  # what is before the first such range is one
        self.ends[start:stop] = stop
        self._last = start

    def write(self, layer: int, rows: Rows, keys: Tensor, values: Tensor) -> None:
        """Stores keys and values [b, K, n, D] of these rows."""
        for stored, new in zip(self._planes(layer, keys, values), (keys, values), strict=True):
            put(stored, rows, new, dim=2)

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
        stored_keys, stored_values = self._planes(layer, keys, values)
        if isinstance(rows, slice):
            stored_keys, stored_values = take(stored_keys, rows, 2), take(stored_values, rows, 2)
            return rope_scatter(queries, keys, values, *rotary, None, stored_keys, stored_values)
        return rope_scatter(queries, keys, values, *rotary, rows, stored_keys, stored_values)

    def _planes(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """A layer's stored keys and values, [b, K, C, D] each."""
        planes = self._layers[layer]
        if planes is None:
            # Zeros, not garbage: a masked position is still multiplied by its weight of zero.
            made = (t.new_zeros((*t.shape[:2], self.capacity, t.shape[3])) for t in (keys, values))
            planes = self._layers[layer] = (next(made), next(made))
        return planes

    def write_features(self, name: str, layer: int, rows: Rows, features: Tensor) -> None:
        """Stores the method's features [b, n, ...] of these rows."""
        put(self.method_features[name][layer], rows, features, dim=1)

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the text, [b, K, S, D] each: views."""
        planes = self._layers[layer]
        assert planes is not None  # a layer is read after it was written
        return planes[0][:, :, : self.length], planes[1][:, :, : self.length]

    def features(self, name: str, layer: int) -> Tensor:
        """The method's features of the text, [b, S, ...]: a view."""
        return self.method_features[name][layer, :, : self.length]

    def note_tokens(self, rows: Rows, tokens: Tensor) -> None:
        """These rows are now computed from `tokens` [b, n] in every layer."""
        put(self.tokens, rows, tokens, dim=1)
        if isinstance(rows, slice) and rows.start <= self._filled:
            self._filled = max(self._filled, rows.stop)

    def mask(self, rows: Rows) -> Tensor | None:
        """What these rows see, bool [1 or b, 1, 1 or n, S]; None where that is everything."""
        seen = None
        if self._filled < self.length or self._padded:
            seen = self.attendable[:, None, None, :]
        if self.ends is None or (isinstance(rows, slice) and rows.start >= self._last):
            return seen
        before = torch.arange(self.length, device=self.tokens.device) < self.ends[rows][..., None]
        before = before[:, None] if before.ndim == 3 else before[None, None]
        return before if seen is None else sees_something(before & seen)

    @property
    def attendable(self) -> Tensor:
        """Bool [b, S]: written, and no padding."""
        return (self.tokens[:, : self.length] >= 0) & self.real[:, : self.length]

    def dirty(self, tokens: Tensor) -> Tensor:
        """Bool [b, S]: positions whose keys and values come from another token than `tokens` [b, S] now holds."""
        length = tokens.shape[1]
        return (self.tokens[:, :length] != tokens) & self.real[:, :length]


def take(source: Tensor, rows: Rows, dim: int = 1) -> Tensor:
    """The rows of `source` [b, ..., S, ...], whose dimension `dim` is positions."""
    if isinstance(rows, slice):
        return source.narrow(dim, rows.start, rows.stop - rows.start)
    return source.gather(dim, _index_into(source, rows, dim))


def put(target: Tensor, rows: Rows, new: Tensor, dim: int) -> None:
    """Writes rows of `target` in place. A repeated row must come with the same values."""
    if isinstance(rows, slice):
        take(target, rows, dim).copy_(new)
    else:
        target.scatter_(dim, _index_into(target, rows, dim), new.to(target.dtype))


def rows_of(wanted: Tensor, count: int | None = None) -> Tensor:
    """Positions int64 [b, n] where `wanted` [b, S] holds, ascending; short lists repeat their last position.

    A text that wants nothing gets its last position, which is never padding.

    Args:
        count: the most positions of a text, or more; None reads it from the device.
    """
    length = wanted.shape[1]
    count = int(wanted.sum(dim=1).amax()) if count is None else count
    positions = torch.arange(length, device=wanted.device)
    last = torch.where(wanted, positions, -1).amax(dim=1, keepdim=True) % length
    found = (
        torch.where(wanted, positions, length).topk(min(max(count, 1), length), dim=1, largest=False).values
    )
    return torch.where(found < length, found, last)


def _index_into(source: Tensor, rows: Tensor, dim: int) -> Tensor:
    """Rows [b, n] as an index into dimension `dim` of `source`, the same over all its other dimensions."""
    batch, n = rows.shape
    before, behind = source.shape[1:dim], source.shape[dim + 1 :]
    alone = rows.view(batch, *[1] * len(before), n, *[1] * len(behind))
    return alone.expand(batch, *before, n, *behind)
