"""CLIP score: it is the cosine, and its weights are never random."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from diffcache.evals.errors import EvaluationError
from diffcache.evals.metrics.clip_score import ClipScore
from diffcache.evals.metrics.media import to_pil
from diffcache.evals.testbeds import procedural


def test_missing_weights_are_named(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match=r"no CLIP weights at .*clip.pt"):
        ClipScore("ViT-B-32", str(tmp_path / "clip.pt"))
    with pytest.raises(EvaluationError, match="no-such-model"):
        ClipScore("no-such-model", "openai")


def test_clip_weights_are_never_random(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="ViT-B-32 needs weights"):
        ClipScore("ViT-B-32")
    (tmp_path / "garbage.pt").write_bytes(b"garbage")
    with pytest.raises(EvaluationError, match=r"cannot be loaded with weights .*garbage.pt"):
        ClipScore("RN50", str(tmp_path / "garbage.pt"))


@pytest.fixture(scope="module")
def tiny_clip(tmp_path_factory: pytest.TempPathFactory) -> ClipScore:
    import open_clip

    folder = tmp_path_factory.mktemp("clip")
    config = {
        "embed_dim": 16,
        "vision_cfg": {"image_size": 32, "layers": 1, "width": 64, "patch_size": 16},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1},
    }
    (folder / "tiny-clip.json").write_text(json.dumps(config))
    open_clip.add_model_config(folder)
    torch.manual_seed(0)
    torch.save(open_clip.create_model("tiny-clip").state_dict(), folder / "tiny.pt")
    return ClipScore("tiny-clip", str(folder / "tiny.pt"))


def test_clip_score_is_the_cosine_of_picture_and_prompt(tiny_clip: ClipScore) -> None:
    drawn, prompts = procedural.pictures(2, 0).pixels, ["a red ring", "a blue cross"]
    scores = tiny_clip(drawn, prompts)
    for picture, prompt, score in zip(drawn, prompts, scores, strict=True):
        with torch.no_grad():
            seen = tiny_clip.net.encode_image(tiny_clip.transform(to_pil(picture))[None])
            said = tiny_clip.net.encode_text(tiny_clip.tokenize([prompt]))
        expected = 100 * max(float(nn.functional.cosine_similarity(seen, said)), 0.0)
        assert float(score) == pytest.approx(expected, abs=1e-3)
    same, other = tiny_clip.similarity(drawn, drawn), tiny_clip.similarity(drawn, drawn.flip(0))
    torch.testing.assert_close(same, torch.full((2,), 100.0))
    assert bool((other < same).all())
    film = drawn[:, None].expand(-1, 3, -1, -1, -1)
    torch.testing.assert_close(tiny_clip(film, prompts), scores)
