"""Temporal flickering: the one dimension of VBench that needs no weights, and so no VBench."""

from torch import Tensor


def temporal_flickering(videos: Tensor) -> Tensor:
    """VBench's score (arXiv 2311.17982) of each video: 1 minus the mean absolute change from frame to frame.

    Args:
        videos: [N, F, 3, H, W] in 0..1, at least two frames.

    Returns:
        [N] in 0..1; a video without any motion has 1.
    """
    change = (videos[:, 1:] - videos[:, :-1]).abs()
    return 1 - change.flatten(1).mean(1)
