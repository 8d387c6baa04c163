"""Calls of a video denoiser with twice as many frames, and their halves."""

import torch
from torch import Tensor

from diffcache.host.call import Call


def longer(call: Call, latent: Tensor) -> Call:
    """The call with as many frames again, of other content; what has an entry for each of the tokens grows with it."""

    def grown(leaf: Tensor) -> Tensor:
        if leaf is latent:
            # Other content: else a past that is missing would not show.
            return torch.cat((leaf, leaf.flip(2, 3, 4)), 2)
        return torch.cat((leaf, leaf), 1) if _is_time_per_token(call, leaf) else leaf

    return call.mapped(grown)


def second_half(double: Call, frames: int) -> Call:
    """Of such a call, the part with the frames after the first `frames`."""
    latent = double.latents[0]

    def half(leaf: Tensor) -> Tensor:
        if leaf is latent:
            return leaf[:, :, frames:]
        return leaf[:, leaf.shape[1] // 2 :] if _is_time_per_token(double, leaf) else leaf

    return double.mapped(half)


def _is_time_per_token(call: Call, leaf: Tensor) -> bool:
    """Whether an argument has a time for each token: two dimensions, and the name of a time."""
    names = [path for path, tensor in call.tensors.items() if tensor is leaf]
    return leaf.ndim == 2 and any("timestep" in name for name in names)
