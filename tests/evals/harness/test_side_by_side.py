"""Pictures of a full run beside those of an accelerated one."""

from pathlib import Path

import torch
from PIL import Image

from diffcache.evals.harness.side_by_side import draw_pairs


def test_pairs_of_pictures_and_of_videos_are_drawn(tmp_path: Path) -> None:
    torch.manual_seed(0)
    for pictures in (torch.rand(2, 3, 16, 16), torch.rand(2, 5, 3, 16, 16)):
        with Image.open(draw_pairs(pictures, pictures, tmp_path / "pairs.png")) as drawn:
            assert min(drawn.size) > 32
