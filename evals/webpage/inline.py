"""Samples inside a page: pictures as PNG, videos as animated PNG."""

import base64
import io

from torch import Tensor

from diffcache.evals.media import to_pil

FRAME_MILLISECONDS = 125


def data_uri(sample: Tensor) -> str:
    """A picture [3, H, W] or a video [F, 3, H, W] in 0..1 as a `data:` address, lossless."""
    first, *others = [to_pil(frame) for frame in (sample[None] if sample.ndim == 3 else sample)]
    data = io.BytesIO()
    animation = {"save_all": True, "append_images": others, "duration": FRAME_MILLISECONDS, "loop": 0}
    first.save(data, format="PNG", **(animation if others else {}))
    return f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"
