"""Writes every page and table of the documentation that is made of evals/results, and the plots of the race.

`python scripts/tables/results.py` writes docs/results.md, and the tables in README.md, docs/measured/ and other pages, with the plots of
the race and of long videos.
"""

from pathlib import Path

from diffcache.evals.harness.command_line import parser
from diffcache.evals.race.plot import draw_race
from diffcache.evals.tables.pages import pages, race_results
from diffcache.evals.tables.video import draw_long_video

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    parser(__doc__).parse_args()
    for path, text in pages(ROOT).items():
        (ROOT / path).write_text(text)
    for result in race_results():
        draw_race(result, ROOT / "docs" / "race" / f"{result.testbed}.png")
    draw_long_video(ROOT / "docs" / "video" / "long.png")


if __name__ == "__main__":
    main()
