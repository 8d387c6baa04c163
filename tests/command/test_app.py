"""The page of `diffcache app`: what it draws, and that it works in a browser."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from support.browser import DESKTOP, PHONE, browser, opened

from diffcache.command.app import SIDE, Studio, drawn, page
from diffcache.command.main import main
from diffcache.command.options import Setting
from diffcache.evals.harness.pipelines import Source
from diffcache.evals.testbeds import shipped
from diffcache.schedulers.errors import ConfigError


@pytest.fixture(scope="module")
def studio() -> Studio:
    return Studio(Setting(Source(shipped.NAME, steps=6)))


def test_the_full_picture_comes_first_and_is_rendered_once(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, last = drawn(studio, "cat face on blue", 2.0, 7)
    assert first[0].size == (SIDE, SIDE)
    assert first[1] is None
    assert last[0] == first[0]
    assert last[1].size == last[2].size == (SIDE, SIDE)
    assert last[1].tobytes() != last[0].tobytes()
    assert "<svg" in last[3]
    assert "2.00x less work" in last[4]
    monkeypatch.setattr(Studio, "cached", lambda *_: pytest.fail("not asked for yet"))
    monkeypatch.setattr("diffcache.command.app.render", lambda *_: pytest.fail("the full run is remembered"))
    assert next(drawn(studio, "cat face on blue", 3.0, 7))[0] == first[0]


def test_a_speed_up_of_one_is_the_full_run(studio: Studio) -> None:
    *_, last = drawn(studio, "cat face on blue", 1.0, 7)
    assert last[1].tobytes() == last[0].tobytes()
    assert max(last[2].getextrema()) == (0, 0)


def test_an_emptied_seed_is_the_first_one(studio: Studio) -> None:
    *_, emptied = drawn(studio, "cat face on blue", 1.0, None)
    *_, first = drawn(studio, "cat face on blue", 1.0, studio.setting.seed)
    assert emptied[0].tobytes() == first[0].tobytes()


def test_only_the_newest_full_runs_are_remembered(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffcache.command.app.REMEMBERED", 2)
    for seed in range(4):
        studio.full("cat face on blue", seed)
    assert [seed for _, seed in studio.fulls] == [2, 3]


def test_a_port_that_is_taken_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gradio", reason="needs the extra app")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["app", "--no-browser", "--port", str(port)]) == 2
    assert f"--port {port} cannot be used" in capsys.readouterr().err


def test_without_gradio_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gradio", None)
    assert main(["app", "--no-browser"]) == 2
    assert "pip install '.[app]'" in capsys.readouterr().err


@pytest.fixture(scope="module")
def address(studio: Studio) -> Iterator[str]:
    pytest.importorskip("gradio", reason="needs the extra app")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    blocks = page(studio)
    blocks.launch(server_port=port, prevent_thread_lock=True, quiet=True)
    yield f"http://127.0.0.1:{port}/"
    blocks.close()


@pytest.mark.slow
def test_a_client_gets_the_pictures(address: str) -> None:
    client = pytest.importorskip("gradio_client").Client(address, verbose=False)
    full, cached, difference, timeline, told = client.predict("rocket on dark", 2.0, 3, api_name="/draw")
    assert full != cached != difference
    assert "<svg" in timeline
    assert "2.00x less work" in told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "sentence"), [((7.0, 3), "maximum value 4"), ((4.0, 2**65), "maximum value")]
)
def test_a_client_is_told_what_is_wrong(address: str, given: tuple[float, int], sentence: str) -> None:
    client = pytest.importorskip("gradio_client").Client(address, verbose=False)
    with pytest.raises(Exception, match=sentence):
        client.predict("rocket on dark", *given, api_name="/draw")


@pytest.mark.slow
def test_a_refusal_is_shown_on_the_page(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**_: Any) -> Any:
        raise ConfigError("this cannot be met")

    monkeypatch.setattr("diffcache.command.app.method_named", refused)
    client = pytest.importorskip("gradio_client").Client(address, verbose=False)
    with pytest.raises(Exception, match="this cannot be met"):
        client.predict("rocket on dark", 2.0, 3, api_name="/draw")


@pytest.mark.slow
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_page_draws_in_a_browser(address: str, size: tuple[int, int]) -> None:
    with browser() as chromium:
        shown: Any
        # the frame of Gradio's own page asks for a script that only embedded pages need
        with opened(chromium, address, size, ignored="ERR_") as shown:
            shown.get_by_role("button", name="Draw").click()
            shown.get_by_text("PSNR").wait_for(timeout=30_000)
            shown.locator("svg.timeline rect").first.wait_for(state="attached", timeout=30_000)
            assert shown.locator("svg.timeline rect").count() >= 6
            assert shown.get_by_label("Speed-up").first.is_visible()
