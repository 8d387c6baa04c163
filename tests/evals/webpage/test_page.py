"""The page of an evaluation."""

import re
from typing import Any

import pytest
import torch
from support.data_uris import frames

from diffcache.evals.harness.results import result_path
from diffcache.evals.race.plot import LOOKS, PACKAGES, few, lines
from diffcache.evals.race.result import EXPERIMENT, RaceResult
from diffcache.evals.webpage import inline
from diffcache.evals.webpage.inline import data_uri
from diffcache.evals.webpage.page import _race
from diffcache.reports.timeline import timeline_svg


def test_a_race_is_shown_for_its_testbed_alone() -> None:
    def result(model: str) -> dict[str, Any]:
        return {
            "manifest": {"model": model, "method": "mine"},
            "cost": {"cached": {"compute": 0.4}},
            "fidelity_and_alignment": {"psnr": {"mean": 70.0}},
        }

    assert (_race(result("flux")) or "").startswith("<svg")
    assert "this run: mine" in (_race(result("flux")) or "")
    assert _race(result("somebody/flux")) is None


def test_of_each_package_one_line_is_drawn() -> None:
    result = RaceResult.load(result_path(EXPERIMENT, "flux"))
    names = [name for name, _ in few(result)]
    assert 3 < len(names) < len(list(lines(result)))
    for package in PACKAGES:
        assert sum(name.split(":")[0] == package and name not in LOOKS for name in names) <= 1


def test_a_timeline_tells_by_shape_what_was_done() -> None:
    drawn = timeline_svg(4, {"cond": dict(enumerate(("by guard", "computed", "some tokens", "reused")))})
    bars = re.findall(r"<title>tick \d: ([a-z ]+)</title><rect [^>]*height=\"(\d+)\"", drawn)
    assert bars == [("by guard", "16"), ("computed", "16"), ("some tokens", "10"), ("reused", "4")]
    assert drawn.count("<circle") == 2  # of the guard's bar, and in the legend


def test_what_is_big_is_shown_with_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    film = torch.rand(3, 3, 16, 16)
    assert data_uri(film).startswith("data:image/png;")
    monkeypatch.setattr(inline, "LOSSLESS", film.numel() - 1)
    kind, encoded = data_uri(film).split(",")
    assert kind == "data:image/webp;base64"
    assert frames(encoded) == 3
