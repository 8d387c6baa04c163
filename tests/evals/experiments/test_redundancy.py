"""Redundancy: what is measured, and its picture beside that of pairs."""

from pathlib import Path

from diffcache.evals.experiments.redundancy import draw, redundancy
from diffcache.evals.harness.rendering import render
from diffcache.evals.harness.side_by_side import draw_pairs
from diffcache.evals.testbeds import zoo


def test_redundancy_and_pictures_are_drawn(tmp_path: Path) -> None:
    pipe, call = zoo.load("wan"), zoo.sample_call("wan", 0, 6, 1)
    found = redundancy(pipe, call)
    assert len(found.output_change) == 5
    assert len(found.block_change) == 14
    assert all(len(changes) == 5 for changes in found.block_change)
    assert draw("wan", found, tmp_path / "card.png").stat().st_size > 1000
    pictures = render(pipe, call).pictures
    assert draw_pairs(pictures, pictures, tmp_path / "pairs.png").stat().st_size > 1000
