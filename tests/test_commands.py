"""The commands that the repository names exist: in its documentation, its sources and its stored results."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = re.compile(r"scripts/[\w/]+\.(?:py|sh)")
FOLDERS = ("diffcache", "docs", "evals", "kernels", "profiling", "schedulers", "scripts", "tests")
KINDS = {".py", ".md", ".sh", ".json"}


def files() -> Iterator[Path]:
    yield from (ROOT / name for name in ("README.md", "CONTRIBUTING.md", "Makefile"))
    for folder in FOLDERS:
        yield from (path for path in (ROOT / folder).rglob("*") if path.suffix in KINDS)


def test_every_script_that_is_named_exists() -> None:
    named = {(path, name) for path in files() for name in SCRIPT.findall(path.read_text())}
    assert len(named) > 100
    assert [f"{path.relative_to(ROOT)}: {name}" for path, name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(
    "path", sorted((ROOT / "scripts").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT / "scripts"))
)
def test_every_script_says_how_it_is_called(path: Path) -> None:
    assert f"scripts/{path.relative_to(ROOT / 'scripts')}" in path.read_text()
