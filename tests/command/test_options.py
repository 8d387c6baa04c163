"""Values of options on the command line."""

from __future__ import annotations

from typing import Any

import pytest

from diffcache.command.options import Assignment


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("False", False), ("none", None), ("0.5", 0.5), ("(1, 2)", (1, 2)), ("stack", "stack")],
)
def test_a_value_is_a_literal_or_a_text(text: str, value: Any) -> None:
    assert Assignment().convert(f"name={text}", None, None) == ("name", value)
