"""Files that are written as a whole or not at all."""

from pathlib import Path

import pytest

from diffcache.schedulers.whole_files import written_whole


def write_half(path: Path) -> None:
    path.write_text("half")
    raise TypeError


def test_after_an_error_what_was_there_stays_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    path.write_text("old")
    with pytest.raises(TypeError), written_whole(path) as part:
        write_half(part)
    assert (path.read_text(), [*tmp_path.iterdir()]) == ("old", [path])
    with written_whole(path) as part:
        part.write_text("new")
    assert (path.read_text(), [*tmp_path.iterdir()]) == ("new", [path])
