"""Procedural pictures and clips, and the classifier that reads them."""

from __future__ import annotations

import torch

from diffcache.evals.testbeds import procedural
from diffcache.evals.testbeds.shape_classifier import ShapeColourClassifier


def test_a_seed_fixes_every_pixel() -> None:
    first, again, other = (procedural.pictures(8, seed) for seed in (3, 3, 4))
    assert torch.equal(first.pixels, again.pixels)
    assert first.captions == again.captions
    assert not torch.equal(first.pixels, other.pixels)


def test_captions_name_the_labelled_object() -> None:
    for batch in (procedural.pictures(64, seed=0), procedural.clips(16, seed=0, frames=5)):
        assert [procedural.label_of(text) for text in batch.captions] == batch.labels.tolist()
    assert (
        procedural.class_name(procedural.label_of("a small green ring centre on a dark background"))
        == "green ring"
    )


def test_pixels_have_the_documented_shape_and_range() -> None:
    for pixels, shape in (
        (procedural.pictures(4, seed=1, side=48).pixels, (4, 3, 48, 48)),
        (procedural.clips(4, seed=1, side=32, frames=9).pixels, (4, 3, 9, 32, 32)),
    ):
        assert pixels.shape == shape
        assert pixels.min() >= 0
        assert pixels.max() <= 1
        assert pixels.flatten(1).std(1).min() > 0.01


def test_clips_move_as_their_captions_say() -> None:
    clips = procedural.clips(64, seed=2)
    axis = torch.linspace(-1, 1, clips.pixels.shape[-1])
    background = clips.pixels.median(dim=2, keepdim=True).values
    weight = (clips.pixels - background).abs().sum(1)  # [n, t, s, s]
    mass = weight.sum((2, 3)).clamp_min(1e-6)
    x, y = (weight.sum(2) * axis).sum(2) / mass, (weight.sum(3) * axis).sum(2) / mass
    travel = torch.stack([x[:, -1] - x[:, 0], y[:, -1] - y[:, 0]], 1)
    expected = {"left": (0, -1), "right": (0, 1), "up": (1, -1), "down": (1, 1)}
    for i, text in enumerate(clips.captions):
        along, sign = expected[text.split(" moving ")[1].split()[0]]
        assert travel[i, along] * sign > 0.3, text
        assert travel[i, 1 - along].abs() < 0.3, text


def test_classifier_reads_fresh_pictures_and_clips() -> None:
    model = ShapeColourClassifier.load()
    pictures = procedural.pictures(256, seed=98_765)
    assert (model.predict(pictures.pixels) == pictures.labels).float().mean() > 0.9
    clips = procedural.clips(32, seed=98_765, frames=5)
    assert (model.predict(clips.pixels.transpose(1, 2)) == clips.labels).float().mean() > 0.9


def test_classifier_features() -> None:
    model = ShapeColourClassifier.load()
    pixels = procedural.pictures(4, seed=5).pixels
    features = model(pixels)
    assert features.shape == (4, model.num_features)
    torch.testing.assert_close(features, model((pixels * 255).round().to(torch.uint8)), atol=0.1, rtol=0.1)
    assert model(torch.zeros(1, 3, 299, 299, dtype=torch.uint8)).isfinite().all()
