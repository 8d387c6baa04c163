"""The documentation's tables are what the stored results give."""

from pathlib import Path

import pytest

from diffcache.evals.harness.results import RESULTS, read_result, stored
from diffcache.evals.tables.losses import losses_table
from diffcache.evals.tables.own_time import own_time_section
from diffcache.evals.tables.pages import pages, race_results

ROOT = Path(__file__).resolve().parents[3]
PAGES = pages(ROOT)
HEADER = {"command", "commit", "date", "device", "versions"}


@pytest.mark.parametrize("path", PAGES)
def test_pages_are_what_the_stored_results_give(path: str) -> None:
    assert (ROOT / path).read_text() == PAGES[path], "run scripts/tables/results.py"


def test_the_own_time_in_the_compatibility_page_is_the_stored_one() -> None:
    assert own_time_section() in (ROOT / "docs" / "compatibility.md").read_text()


def test_every_loss_against_fewer_steps_is_listed() -> None:
    lines = losses_table(race_results()).splitlines()
    for testbed, result in stored("trajectory").items():
        for row in result["rows"]:
            gain = row["prior"] - row["fewer_steps"]
            line = f"| `speedup=` | {testbed} | {row['ticks']} of {row['steps']} | {gain:+.1f} |"
            assert (line in lines) == (gain < 0)


def test_every_race_has_a_plot() -> None:
    assert all((ROOT / "docs" / "race" / f"{result.testbed}.png").exists() for result in race_results())


@pytest.mark.parametrize("path", sorted(RESULTS.rglob("*.json")), ids=lambda p: str(p.relative_to(RESULTS)))
def test_every_result_has_a_header_and_lies_in_the_folder_of_its_experiment(path: Path) -> None:
    result = read_result(path)
    assert result["header"].keys() == HEADER
    assert path.parent.parent == RESULTS
    assert all({*note} >= {"names", *HEADER} for note in result.get("renewed", []))


@pytest.mark.parametrize("folder", ["evals/results", "evals/testbeds"])
def test_no_stored_file_names_a_folder_of_the_machine_that_made_it(folder: str) -> None:
    elsewhere = ('"/', "/tmp/", "/home/", "/root/")
    found = [
        path for path in (ROOT / folder).rglob("*.json") if any(e in path.read_text() for e in elsewhere)
    ]
    assert found == []
