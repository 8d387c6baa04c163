"""Takes the picture of a report in docs/pictures/report.png: `python scripts/measure/report_picture.py`, with Chromium and playwright."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import sync_playwright

from diffcache.evals.evaluation.evaluate import Evaluation, evaluate
from diffcache.evals.harness.command_line import parser
from diffcache.evals.webpage.page import write_page

PATH = Path(__file__).resolve().parents[2] / "docs" / "pictures" / "report.png"


def main() -> None:
    parser(__doc__).parse_args()
    with TemporaryDirectory() as folder, sync_playwright() as driver:
        result = evaluate(Evaluation("sd3", options={"speedup": 2.0}, samples=6, seed=1000), Path(folder))
        assert result is not None
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1000, "height": 860})
        page.goto(write_page(result, Path(folder)).as_uri())
        page.screenshot(path=PATH)
        browser.close()


if __name__ == "__main__":
    main()
