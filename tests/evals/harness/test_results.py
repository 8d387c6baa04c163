"""Result files: where they lie, what their header says, and what is noted of rows that are measured again."""

import subprocess
from pathlib import Path

import pytest

from diffcache.evals.harness import provenance
from diffcache.evals.harness.markdown import markdown_table, named_once, with_tables
from diffcache.evals.harness.provenance import header
from diffcache.evals.harness.results import read_result, renewals, result_path, stored, write_result


def test_results_are_read_as_they_were_written_testbeds_first(tmp_path: Path) -> None:
    for name in ("flux_hold", "sd", "dit"):
        write_result(result_path("toy", name, tmp_path), header(), {"rows": [name]})
    assert [*stored("toy", tmp_path)] == ["dit", "sd", "flux_hold"]
    assert read_result(tmp_path / "toy" / "sd.json")["rows"] == ["sd"]
    assert {path.name for path in (tmp_path / "toy").iterdir()} == {"flux_hold.json", "sd.json", "dit.json"}


def test_the_header_names_the_commit_the_device_and_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    made = header()
    assert made["device"] == "cpu, one thread"  # of the tests, see conftest.py
    assert {"python", "torch", "diffusers"} <= made["versions"].keys()
    command = ["git", "rev-parse", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    assert (made["commit"] or "").removesuffix("-dirty") == commit.stdout.strip()
    monkeypatch.setattr(provenance, "COMMIT", ("no-such-program",))
    assert header()["commit"] is None


def test_a_renewal_replaces_the_notes_whose_rows_are_all_measured_again() -> None:
    notes = renewals([], {"date": "1"}, ["a", "b"])
    assert notes == [{"names": ["a", "b"], "date": "1"}]
    assert [note["date"] for note in renewals(notes, {"date": "2"}, ["a"])] == ["1", "2"]
    assert [note["date"] for note in renewals(notes, {"date": "2"}, ["a", "b", "c"])] == ["2"]


def test_tables_are_put_into_their_places() -> None:
    table = markdown_table(["a", "b"], [["1", "2"]])
    assert table == "| a | b |\n|---|---|\n| 1 | 2 |"
    page = "Text.\n\n<!-- table: toy -->\n\nold\n\n<!-- end -->\n\nMore.\n"
    assert with_tables(page, {"toy": table}) == page.replace("old", table)
    with pytest.raises(KeyError):
        with_tables(page, {})


def test_the_first_cell_of_a_row_is_written_where_it_changes() -> None:
    rows = [["a", "1"], ["a", "2"], ["b", "1"], ["a", "1"]]
    assert named_once(rows) == [["a", "1"], ["", "2"], ["b", "1"], ["a", "1"]]
