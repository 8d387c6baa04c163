"""Pictures inside a page."""

from __future__ import annotations

import base64
import io

from PIL import Image


def frames(encoded: str) -> int:
    """How many frames a picture in base 64 has."""
    with Image.open(io.BytesIO(base64.b64decode(encoded))) as image:
        return int(image.n_frames)
