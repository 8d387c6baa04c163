"""Samples inside a page: as PNG, animated for videos, or as WebP if they are too big for lossless compression."""

import base64
import io

from torch import Tensor

from diffcache.evals.metrics.media import to_pil

FRAME_MILLISECONDS = 125
LOSSLESS = 2**23
"""The most values (bytes, uncompressed) of a sample that is shown without loss: a picture of 1600 x 1600."""
QUALITY = 90


def data_uri(sample: Tensor) -> str:
    """A picture [3, H, W] or a video [F, 3, H, W] in 0..1 as a `data:` address."""
    first, *others = [to_pil(frame) for frame in (sample[None] if sample.ndim == 3 else sample)]
    animation = {"save_all": True, "append_images": others, "duration": FRAME_MILLISECONDS, "loop": 0}
    kind, options = ("png", {}) if sample.numel() <= LOSSLESS else ("webp", {"quality": QUALITY})
    data = io.BytesIO()
    first.save(data, format=kind, **options, **(animation if others else {}))
    return f"data:image/{kind};base64,{base64.b64encode(data.getvalue()).decode()}"
