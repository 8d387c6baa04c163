"""What people meet first: the notebook runs, the citation and the templates for issues are whole, versions agree."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import diffcache

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "notebooks" / "quickstart.ipynb"
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def cells() -> list[str]:
    found = json.loads(NOTEBOOK.read_text())["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == "code"]


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    script = tmp_path / "notebook.py"
    script.write_text("\n".join(cells()))
    done = subprocess.run(
        [sys.executable, str(script)], cwd=ROOT, env={**__import__("os").environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "14 of 28 ticks computed" in done.stdout
    assert "14 even ticks" in done.stdout


def test_the_notebook_is_stored_without_outputs() -> None:
    found = json.loads(NOTEBOOK.read_text())["cells"]
    assert len(cells()) >= 6
    assert all(not cell["outputs"] for cell in found if cell["cell_type"] == "code")


def test_versions_agree() -> None:
    project = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert project is not None
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == project[1] == diffcache.__version__
    assert cited["cff-version"] == "1.2.0"
    assert f"## {project[1]}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_a_template_is_of_the_form_that_is_read(path: Path) -> None:
    data = yaml.safe_load(path.read_text())
    if path.stem == "config":
        assert data == {"blank_issues_enabled": False}
        return
    assert {"name", "description", "body"} <= data.keys()
    assert all(
        part["type"] in {"textarea", "input", "checkboxes"} and part["attributes"]["label"]
        for part in data["body"]
    )
    named = re.findall(r"docs/[\w/]+\.md", path.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_extra_that_the_quickstart_names_exists() -> None:
    extras = set(re.findall(r"^(\w[\w-]*) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE))
    install = (ROOT / "docs" / "index.md").read_text().split("## Install")[1].split("\n## ")[0]
    named = {
        *re.findall(r"\.\[([\w-]+)\]", install),
        *re.findall(r"^\| `([\w-]+)` \|", install, re.MULTILINE),
    }
    assert "app" in named
    assert named <= extras
