"""Fixtures by which the tests here note what they found; `scripts/tables/compatibility.py` makes docs/compatibility.md of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from compatibility.levels import Cell


@pytest.fixture
def cell(record_property: Callable[[str, object], None]) -> Cell:
    """Writes down one cell of the table: group, feature, level of the method, and "works" or why not."""

    def write(group: str, feature: str, level: str, verdict: str = "works") -> None:
        record_property("cell", (group, feature, level, verdict))

    return write


@pytest.fixture
def fault(record_property: Callable[[str, object], None]) -> Cell:
    """Writes down a fault of a peer's, and whether the peer's failure was run here too."""

    def write(line: str, text: str, theirs: str) -> None:
        record_property("fault", (line, text, theirs))

    return write
