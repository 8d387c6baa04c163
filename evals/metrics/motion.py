"""How far the one object of a video moves from frame to frame."""

import torch
from torch import Tensor


def motion(videos: Tensor) -> Tensor:
    """Mean path of the object's centre per frame; the picture is 2 wide and 2 high.

    The centre is that of what differs from the background. The background is the border's median colour.

    Args:
        videos: [N, F, 3, H, W] in 0..1, at least two frames.

    Returns:
        [N].
    """
    n, frames, _, height, width = videos.shape
    border = torch.cat((videos[..., 0, :], videos[..., -1, :], videos[..., 0], videos[..., -1]), -1)
    background = border.median(-1).values[..., None, None]
    weight = (
        (videos - background).abs().sum(2).pow(2)
    )  # squared, so that a shaded background counts for little
    weight = weight / weight.sum((-2, -1), keepdim=True).clamp_min(1e-8)
    y = ((torch.arange(height) + 0.5) / height * 2 - 1).to(videos)
    x = ((torch.arange(width) + 0.5) / width * 2 - 1).to(videos)
    centre = torch.stack(((weight * x).sum((-2, -1)), (weight * y[:, None]).sum((-2, -1))), -1)
    assert centre.shape == (n, frames, 2)
    path: Tensor = torch.linalg.vector_norm(centre[:, 1:] - centre[:, :-1], dim=-1).mean(1)
    return path
