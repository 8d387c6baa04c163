"""Takes the pictures of pages in docs/pictures: `make site; python scripts/measure/report_picture.py`, with Chromium.

report.png and phone.png are the page of an evaluation, app.png is that of `diffcache app`, site.png the first page of `make site`,
timeline.svg what `report(pipe).plot` draws.
"""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from playwright.sync_api import sync_playwright

from diffcache import accelerate, report
from diffcache.command.app import Studio, page, theme
from diffcache.command.options import Setting
from diffcache.evals.evaluation.evaluate import Evaluation, evaluate
from diffcache.evals.harness.command_line import parser
from diffcache.evals.harness.pipelines import Source
from diffcache.evals.testbeds import shipped, zoo
from diffcache.evals.webpage.page import write_page

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "pictures"
PORT = 7871


def main() -> None:
    parser(__doc__).parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    pipe = accelerate(zoo.load("flux"))
    pipe(**zoo.sample_call("flux", 1000, 50, 1))
    report(pipe).plot(FOLDER / "timeline.svg")
    with TemporaryDirectory() as folder, sync_playwright() as driver:
        asked = Evaluation("sd3", options={"speedup": 2.0}, samples=6, steps=28, seed=1000)
        result = evaluate(asked, Path(folder))
        assert result is not None
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        report_page = write_page(result, Path(folder)).as_uri()
        _opened(browser, report_page, 1000, 970).screenshot(path=FOLDER / "report.png")
        _opened(browser, report_page, 380, 800).screenshot(path=FOLDER / "phone.png")
        site = _opened(browser, (ROOT / "outputs" / "site" / "index.html").as_uri(), 1400, 900)
        site.screenshot(path=FOLDER / "site.png")
        blocks = page(Studio(Setting(Source(shipped.NAME))))
        blocks.launch(server_port=PORT, prevent_thread_lock=True, quiet=True, theme=theme())
        app = _opened(browser, f"http://127.0.0.1:{PORT}/", 1000, 1000)
        app.get_by_role("button", name="Draw").click()
        app.get_by_text("PSNR").wait_for(timeout=120_000)
        app.wait_for_timeout(1000)
        app.screenshot(path=FOLDER / "app.png")
        blocks.close()
        browser.close()


def _opened(browser: Any, address: str, width: int, height: int) -> Any:
    shown = browser.new_page(viewport={"width": width, "height": height})
    shown.goto(address)
    return shown


if __name__ == "__main__":
    main()
