"""The page of an evaluation as people see it: in a browser, on a desktop and on a phone, light and dark."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.browser import DESKTOP, PHONE, browser, opened

from diffcache.evals.evaluation.evaluate import Evaluation, evaluate
from diffcache.evals.webpage.page import LEAST_FOR_FID, write_page

STYLE = "one => getComputedStyle(one)"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("evaluated")
    asked = Evaluation("dit", options={"speedup": 2.0}, samples=5, steps=6, batch_size=5)
    result = evaluate(asked, folder)
    assert result is not None
    return result, write_page(result, folder)


@pytest.mark.slow
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_whole(
    size: tuple[int, int], scheme: str, chromium: Any, evaluated: tuple[dict[str, Any], Path]
) -> None:
    with opened(chromium, evaluated[1].as_uri(), size, scheme) as page:
        assert page.locator(".tile").first.inner_text().split()[0] == "2.00x"
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
        assert dark == (scheme == "dark")
        assert page.locator("svg.timeline rect").count() > 6
        wide = page.locator(".pair").first.bounding_box()
        assert wide["width"] > 200
        assert abs(wide["width"] - wide["height"]) < 2


@pytest.mark.slow
def test_the_slider_moves_the_line_and_the_difference_can_be_seen(
    chromium: Any, evaluated: tuple[dict[str, Any], Path]
) -> None:
    with opened(chromium, evaluated[1].as_uri()) as page:
        cached, difference = page.locator(".pair img").nth(1), page.locator(".pair img.difference").first
        page.locator("figure input[type=range]").first.evaluate(
            "one => { one.value = 80; one.dispatchEvent(new Event('input')) }"
        )
        assert "80%" in cached.evaluate(f"{STYLE}.clipPath")
        assert not difference.is_visible()
        page.get_by_label("difference, ten times").check()
        assert difference.is_visible()


@pytest.mark.slow
def test_a_few_samples_have_no_fid_and_many_have_one(
    evaluated: tuple[dict[str, Any], Path], tmp_path: Path
) -> None:
    result, path = evaluated
    assert "FID and KID are not shown: with 5 samples" in path.read_text()
    for name in ("full", "cached"):
        (tmp_path / name).symlink_to(path.parent / name)
    many = {**result, "manifest": {**result["manifest"], "samples": LEAST_FOR_FID}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("diffcache.evals.webpage.page._worst", lambda result, folder: [])
        assert f"FID, {LEAST_FOR_FID} samples" in write_page(many, tmp_path).read_text()


@pytest.mark.slow
def test_a_video_moves_and_the_raced_run_is_marked(chromium: Any, tmp_path: Path) -> None:
    asked = Evaluation("wan", options={"speedup": 2.0}, samples=1, steps=4, extractor=None)
    result = evaluate(asked, tmp_path)
    assert result is not None
    page = write_page(result, tmp_path)
    pictures = re.findall(r"data:image/png;base64,([^\"]+)", page.read_text())
    assert len(pictures) == 3
    assert all(b"acTL" in base64.b64decode(one) for one in pictures)  # animated PNG
    raced = {**result, "manifest": {**result["manifest"], "model": "flux"}}
    marked = write_page(raced, tmp_path)
    with opened(chromium, marked.as_uri()) as shown:
        assert shown.locator(".race svg").count() == 1
        assert "this run: trajectory" in shown.content()
