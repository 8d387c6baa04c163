"""Pages in a real browser: Debian's Chromium, driven by Playwright. Tests are skipped where either is missing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

DESKTOP, PHONE = (1100, 900), (380, 800)

CUT = """() => [...document.querySelectorAll('h1, h2, p, td, th, figcaption, label, button, .tile, small')].filter(
  one => one.textContent.trim() && one.clientWidth > 1 && one.scrollWidth > one.clientWidth + 1).map(one => one.tagName + ': ' + one.textContent.slice(0, 40))"""
"""Elements whose text is wider than they are."""


@contextmanager
def browser() -> Iterator[Any]:
    """A browser; whoever asks for it is skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("needs Chromium (apt-get install chromium)")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(
            executable_path=found, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        yield started
        started.close()


@contextmanager
def opened(
    browser: Any,
    address: str,
    size: tuple[int, int] = DESKTOP,
    scheme: str = "light",
    ignored: str | None = None,
) -> Iterator[Any]:
    """A page in a window of this size. At the end it must have logged no error (but those with `ignored`) and cut no text."""
    page = browser.new_page(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(address)
    yield page
    cut = page.evaluate(CUT)
    assert cut == [], cut
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    assert [error for error in errors if ignored is None or ignored not in error] == []
    page.close()
