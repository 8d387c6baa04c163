"""Distances between sets, CLIP score, prompt files: they equal torchmetrics' own, and refuse what they cannot read."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torchmetrics.image.fid import FrechetInceptionDistance
from torchmetrics.image.inception import InceptionScore
from torchmetrics.image.kid import KernelInceptionDistance

from diffcache.evals.harness.prompts import read_prompts
from diffcache.evals.metrics.clip_score import ClipScore
from diffcache.evals.metrics.distribution import (
    KID_SUBSETS,
    coverage,
    distances,
    fid,
    inception_score,
    kid,
)
from diffcache.evals.metrics.errors import EvaluationError
from diffcache.evals.metrics.extractors import Extractor, reference_features
from diffcache.evals.metrics.media import save_sample, to_pil
from diffcache.evals.testbeds import procedural


class Pooled(nn.Module):
    """Pictures to features that torchmetrics can use itself."""

    num_features = 12

    def forward(self, pictures: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool2d(pictures.float(), 2).flatten(1)


def pictures(n: int, seed: int) -> Tensor:
    return torch.randint(
        0, 256, (n, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )


def random_features(n: int, seed: int, mean: float = 0.0) -> Tensor:
    return mean + torch.randn(n, 16, generator=torch.Generator().manual_seed(seed))


def test_fid_kid_and_inception_score_are_torchmetrics_own() -> None:
    real, made, net = pictures(40, 0), pictures(30, 1), Pooled()
    theirs = FrechetInceptionDistance(net)
    theirs.update(real, real=True)
    theirs.update(made, real=False)
    assert fid(net(made), net(real)) == pytest.approx(float(theirs.compute()), rel=1e-6)

    kernel = KernelInceptionDistance(net, subsets=KID_SUBSETS, subset_size=30)
    kernel.update(real, real=True)
    kernel.update(made, real=False)
    torch.manual_seed(0)
    assert kid(net(made), net(real)) == float(kernel.compute()[0])

    for splits, n in ((1, 30), (10, 1000)):
        score = InceptionScore(net, splits=splits)
        score.update(pictures(n, 1))
        torch.manual_seed(0)
        assert inception_score(net(pictures(n, 1))) == float(score.compute()[0])


def test_kid_repeats_and_leaves_the_random_state_alone() -> None:
    made, real = random_features(20, 0), random_features(30, 1)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = kid(made, real)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    assert kid(made, real) == first


def test_precision_and_recall_tell_collapse_from_noise() -> None:
    real = random_features(200, 0)
    collapsed = real[:1] + 0.01 * random_features(200, 1)
    assert coverage(collapsed, real) == 1.0  # all of it is real
    assert coverage(real, collapsed) < 0.05  # and hardly anything real is covered
    assert coverage(real + 100, real) == 0.0
    assert coverage(real, real) == 1.0


def test_radii_reach_the_third_neighbour() -> None:
    line = torch.tensor([[0.0], [1.0], [2.0], [3.0], [4.0]])
    assert (
        coverage(torch.tensor([[7.0], [7.1], [-3.0], [-3.1]]), line) == 0.5
    )  # the ends reach 3, to 7 and to -3


def test_distances_refuse_what_cannot_be_compared() -> None:
    with pytest.raises(EvaluationError, match="same extractor"):
        distances(torch.zeros(8, 3), torch.zeros(8, 4))
    with pytest.raises(EvaluationError, match="too few"):
        distances(torch.zeros(3, 4), torch.zeros(8, 4))


def test_a_reference_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "real"
    folder.mkdir()
    extractor = Extractor("classifier")
    with pytest.raises(EvaluationError, match="has no pictures"):
        reference_features(extractor, folder)
    drawn = procedural.pictures(6, 0).pixels
    for i, picture in enumerate(drawn):
        save_sample(picture, folder / f"{i}")
    first = reference_features(extractor, folder)
    assert first.features.shape == (6, 128)
    assert first.logits.shape == (6, procedural.NUM_CLASSES)
    # Files are 8-bit, and so is what is extracted; one by one or together is the same but for rounding.
    torch.testing.assert_close(first.features, extractor(drawn).features, rtol=0, atol=1e-4)
    with monkeypatch.context() as no_extraction:
        no_extraction.setattr(Extractor, "__call__", None)
        assert torch.equal(reference_features(extractor, folder).features, first.features)
    extractor.net.features.weight.mul_(2)  # other weights of the same name
    assert not torch.equal(reference_features(extractor, folder).features, first.features)


def test_reference_pictures_may_differ_in_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    extractor, (drawn,) = Extractor("classifier"), procedural.pictures(1, 0).pixels
    save_sample(drawn, tmp_path / "0")
    save_sample(drawn[:, :40], tmp_path / "1")
    found = reference_features(extractor, tmp_path).features
    expected = torch.cat([extractor(picture[None]).features for picture in (drawn, drawn[:, :40])])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_missing_weights_are_named(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match=r"no Inception weights at .*weights.pth"):
        Extractor(str(tmp_path / "weights.pth"))
    with pytest.raises(EvaluationError, match=r"no CLIP weights at .*clip.pt"):
        ClipScore("ViT-B-32", str(tmp_path / "clip.pt"))
    with pytest.raises(EvaluationError, match="no-such-model"):
        ClipScore("no-such-model", "openai")


def test_clip_weights_are_never_random(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="ViT-B-32 needs weights"):
        ClipScore("ViT-B-32")
    (tmp_path / "garbage.pt").write_bytes(b"garbage")
    with pytest.raises(EvaluationError, match=r"cannot be had with weights .*garbage.pt"):
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
    film = drawn[:, None].expand(-1, 3, -1, -1, -1)
    torch.testing.assert_close(tiny_clip(film, prompts), scores)


def test_prompt_files(tmp_path: Path) -> None:
    def read(name: str, text: str) -> list[str]:
        (tmp_path / name).write_text(text)
        return read_prompts(tmp_path / name)

    assert read("a.txt", "one\n\n two \n") == ["one", "two"]
    assert read("parti.tsv", "Prompt\tCategory\na, cat\tAnimals\n") == ["a, cat"]
    quotes = '"Stop" on a sign'
    assert read("parti.tsv", f'Prompt\tCategory\n{quotes}\tArts\n"Go\tArts\na fox\tArts\n') == [
        quotes,
        '"Go',
        "a fox",
    ]
    assert read("own.csv", 'prompt,n\n"a, dog",1\n') == ["a, dog"]
    assert read("spreadsheet.csv", "\ufeffprompt\na fox\n") == ["a fox"]
    assert read("short.csv", "n,prompt\n1\n2,a fox\n") == ["a fox"]
    assert read("list.json", '["x", "y"]') == ["x", "y"]
    assert read("mjhq.json", '{"id": {"prompt": "fox", "category": "animals"}}') == ["fox"]
    assert read("vbench.json", '[{"prompt_en": "a bird", "dimension": ["color"]}]') == ["a bird"]
    captions = [{"image_id": 7, "caption": "first"}, {"image_id": 7, "caption": "second"}]
    assert read("coco.json", json.dumps({"annotations": captions})) == ["first"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", b"\n \n", "has no prompts"),
        ("bad.txt", b"\xff\xfe\xff", "cannot read prompts"),
        ("bad.json", b"{", "cannot read prompts"),
        ("other.json", b'[{"text": "x"}]', "none of prompt, Prompt"),
        ("string.json", b'"abc"', "neither a list nor an object"),
        ("huge.csv", b"prompt\n" + 200_000 * b"x", "cannot read prompts"),
        ("prompts.parquet", b"PAR1", "convert it"),
        ("missing.txt", None, "cannot read prompts"),
    ],
)
def test_unreadable_prompt_files(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(EvaluationError, match=message):
        read_prompts(tmp_path / name)
