"""The page of an evaluation."""

import base64
import io

import pytest
import torch
from PIL import Image

from diffcache.evals.webpage import inline
from diffcache.evals.webpage.inline import data_uri
from diffcache.evals.webpage.page import _race


def test_a_race_is_shown_for_its_testbed_alone() -> None:
    assert (_race("flux") or "").startswith("<svg")
    assert _race("somebody/flux") is None


def test_what_is_big_is_shown_with_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    film = torch.rand(3, 3, 16, 16)
    assert data_uri(film).startswith("data:image/png;")
    monkeypatch.setattr(inline, "LOSSLESS", film.numel() - 1)
    kind, encoded = data_uri(film).split(",")
    assert kind == "data:image/webp;base64"
    assert _frames(encoded) == 3


def _frames(encoded: str) -> int:
    with Image.open(io.BytesIO(base64.b64decode(encoded))) as image:
        return int(image.n_frames)
