"""Feature extractors: a reference is computed once, and missing weights are named."""

from pathlib import Path

import pytest
import torch

from diffcache.evals.errors import EvaluationError
from diffcache.evals.metrics.extractors import Extractor, reference_features
from diffcache.evals.metrics.media import save_sample
from diffcache.evals.testbeds import procedural


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


def test_fashion_pictures_are_read_by_their_own_classifier() -> None:
    extractor = Extractor("fashion_classifier")
    features = extractor(torch.rand(3, 3, 32, 32))
    assert features.features.shape == (3, 64)
    assert features.logits.shape == (3, 10)
    assert extractor.label == "Fashion-MNIST classifier"


def test_missing_weights_are_named(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match=r"no Inception weights at .*weights.pth"):
        Extractor(str(tmp_path / "weights.pth"))
