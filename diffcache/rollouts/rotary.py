"""Keys turned to another temporal position, by the denoiser's own rotary rows.

A row holds a cosine and a sine for each channel of a token. The ratio of the rows of two frames at one place of the picture is the
turn from one to the other. It leaves channels for height and width alone, so that no split of channels need be known.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from diffcache.schedulers.errors import TargetError

INTERLEAVED, HALVES = "interleaved", "halves"
"""Which two channels are turned together: neighbours, or those half of the channels apart."""


class Rotary:
    """The rows of one module of a denoiser.

    Args:
        module: is called with latents [batch, channels, frames, height, width], and returns a pair of cosines and sines.
        latent: that it was called with.

    Raises:
        TargetError: its rows are laid out in another way than the two that are known.
    """

    def __init__(self, module: nn.Module, latent: Tensor) -> None:
        self.module = module
        self._like = latent.new_empty(1).expand(*latent.shape[:2], 1, *latent.shape[3:])
        one, two = self._called(1), self._called(2)
        dims = [dim for dim in range(one[0].ndim) if one[0].shape[dim] != two[0].shape[dim]]
        if len(dims) != 1 or 2 * one[0].shape[dims[0]] != two[0].shape[dims[0]]:
            raise TargetError(
                "its rotary rows do not grow with the frames: they cannot be moved along a video."
            )
        self._dim, self._per_frame = dims[0], one[0].shape[dims[0]]
        self.pairing = self._pairing(two)
        self._turns: dict[int, Tensor] = {0: torch.ones_like(self._turn(0))}

    def rows(self, first: int, frames: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of some frames, as the module itself gives them in a longer video.

        Raises:
            TargetError: the module has no rows for so many frames.
        """
        end = first + frames
        cos, sin = self._called(end)
        if cos.shape[self._dim] != end * self._per_frame:
            raise TargetError(
                f"this denoiser has rotary rows for fewer than {end} frames: choose a policy with a window."
            )
        at = self._dim, first * self._per_frame, frames * self._per_frame
        return cos.narrow(*at), sin.narrow(*at)

    def turned(self, keys: Tensor, by: Tensor) -> Tensor:
        """Keys at other temporal positions.

        Args:
            keys: [B, H, T, D].
            by: how many frames later each is to stand, int64 [B, G, T] on the CPU; G is 1 or H.

        Returns:
            New keys of the same dtype; the same ones where nothing turns. They are computed in fp32.
        """
        if not by.any():
            return keys
        distinct, index = torch.unique(by, return_inverse=True)
        turns = torch.stack([self.turn(int(delta)) for delta in distinct]).to(torch.complex64)
        turn = turns.to(keys.device)[index.to(keys.device)]  # [B, G, T, pairs]
        width = 2 * turn.shape[-1]
        first, second = self._split(keys[..., :width].float())
        cos, sin = turn.real, turn.imag
        both = torch.stack(
            (first * cos - second * sin, first * sin + second * cos),
            -1 if self.pairing == INTERLEAVED else -2,
        )
        turned = both.flatten(-2).to(keys.dtype)
        return turned if width == keys.shape[-1] else torch.cat((turned, keys[..., width:]), -1)

    def turn(self, by: int) -> Tensor:
        """The turn of each pair of channels over so many frames, complex128 [pairs].

        Beyond the module's rows it is the product of two shorter turns.
        """
        if by not in self._turns:
            if by < 0:
                self._turns[by] = self.turn(-by).conj()
            elif self._called(by + 1)[0].shape[self._dim] == (by + 1) * self._per_frame:
                found = self._turn(by) / self._turn(0)
                self._turns[by] = found / found.abs()
            else:
                self._turns[by] = self.turn(by // 2) * self.turn(by - by // 2)
        return self._turns[by]

    def _turn(self, frame: int) -> Tensor:
        """The row of a frame's first token, complex128 [pairs]."""
        rows = self._called(frame + 1)
        cos, sin = (part.select(self._dim, frame * self._per_frame).flatten().double().cpu() for part in rows)
        half = len(cos) // 2
        if self.pairing == INTERLEAVED:
            return torch.complex(cos[0::2], sin[1::2])
        return torch.complex(cos[:half], sin[half:])

    def _split(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        if self.pairing == INTERLEAVED:
            return keys[..., 0::2], keys[..., 1::2]
        first, second = keys.chunk(2, -1)
        return first, second

    def _called(self, frames: int) -> tuple[Tensor, Tensor]:
        """The rows of so many frames; of fewer, or none, where the module has no more."""
        shape = [*self._like.shape]
        shape[2] = frames
        try:
            cos, sin = self.module.forward(self._like.expand(shape))
        except RuntimeError:
            empty = torch.empty([0] * len(self._like.shape))
            return empty, empty
        return cos, sin

    def _pairing(self, rows: Any) -> str:
        cos = rows[0].movedim(self._dim, 0).reshape(rows[0].shape[self._dim], -1)
        half = cos.shape[1] // 2
        if torch.equal(cos[:, 0::2], cos[:, 1::2]):
            return INTERLEAVED
        if torch.equal(cos[:, :half], cos[:, half:]):
            return HALVES
        raise TargetError(
            "its rotary rows are laid out in a way that is not known: its keys cannot be turned."
        )
