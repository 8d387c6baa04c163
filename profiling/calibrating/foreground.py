"""Foreground masks over a denoiser's tokens, made from the clean latent."""

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool3d

from diffcache.prediction.correctors import channel_dim
from diffcache.schedulers.errors import ConfigError


def saliency(latent: Tensor) -> Tensor:
    """How much each position of a latent differs from the others: L2 distance to the median over positions.

    Args:
        latent: [N, tokens, channels], or [N, channels, (frames,) height, width].

    Returns:
        fp32, the latent's shape without channels.
    """
    channels = channel_dim(latent)
    flat = latent.float().movedim(channels, -1).flatten(1, -2)
    median = flat.median(1, keepdim=True).values
    distance = (flat - median).square().sum(-1).sqrt()
    return distance.reshape(latent.movedim(channels, -1).shape[:-1])


def otsu(values: Tensor) -> Tensor:
    """Bool [N, positions]: True above Otsu's threshold, which splits the values into the two groups of largest variance between.

    Args:
        values: [N, positions]. Each row has a threshold of its own.
    """
    ordered, n = values.double().sort(1).values, values.shape[1]
    below = torch.arange(1, n, dtype=torch.float64, device=values.device)
    sums = ordered.cumsum(1)
    gap = (sums[:, -1:] - sums[:, :-1]) / (n - below) - sums[:, :-1] / below
    split = (below * (n - below) * gap.square()).argmax(1, keepdim=True)
    return values.double() > ordered.gather(1, split)


def on_tokens(field: Tensor, tokens: int) -> Tensor:
    """A field over positions, averaged over the area of each token: [N, tokens].

    Args:
        field: [N, H, W] or [N, F, H, W]; [N, tokens] is returned as it is.
        tokens: number of tokens. They are a grid with the field's aspect ratio and at most as many frames.

    Raises:
        ConfigError: there is no such grid.
    """
    if field.ndim == 2 and field.shape[1] == tokens:
        return field.float()
    frames, height, width = (1, *field.shape[-2:]) if field.ndim == 3 else field.shape[-3:]
    for f in range(frames, 0, -1):
        h = round((tokens / f * height / width) ** 0.5)
        if h > 0 and tokens % (f * h) == 0 and h * width == tokens // (f * h) * height:
            pooled = adaptive_avg_pool3d(
                field.float().reshape(-1, 1, frames, height, width), (f, h, tokens // (f * h))
            )
            return pooled.flatten(1)
    raise ConfigError(
        f"a latent of {list(field.shape[1:])} cannot be laid over {tokens} tokens: name the blocks yourself (blocks=)."
    )
