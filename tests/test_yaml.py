"""A method and its options in a YAML file."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.toys import toy_pipeline

from diffcache import ConfigError, accelerate, report, restore
from diffcache.api import method_named


def written(folder: Path, text: str) -> str:
    (folder / "cache.yaml").write_text(text)
    return str(folder / "cache.yaml")


def test_a_file_names_a_method_and_its_options(tmp_path: Path) -> None:
    config = method_named(written(tmp_path, "method: pab\ninterval: 3\nwindow: [0.2, 0.8]\n"))
    assert (config.name, config.interval, config.window) == ("pab", 3, (0.2, 0.8))  # type: ignore[attr-defined]


def test_without_a_name_it_is_the_default_method_and_options_in_python_go_first(tmp_path: Path) -> None:
    path = written(tmp_path, "threshold: 0.05\nwarmup_steps: 4\n")
    config = method_named(path, threshold=0.1)
    assert (config.name, config.threshold, config.warmup_steps) == ("trajectory", 0.1, 4)  # type: ignore[attr-defined]


def test_a_pipeline_takes_it(tmp_path: Path) -> None:
    pipe = accelerate(toy_pipeline(), written(tmp_path, "method: uniform\ninterval: 2\n"))
    assert report(pipe).method == "uniform"
    restore(pipe)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("method: unifrom\n", "did you mean 'uniform'"),
        ("method: uniform\nintervall: 2\n", "has no option 'intervall'"),
        ("method: uniform\ninterval: 0\n", "interval must be a whole number >= 1"),
        ("method: 3\n", "method must be a name, not 3"),
        ("- uniform\n", "must hold names and values"),
        ("method: [", "no YAML"),
    ],
)
def test_what_is_wrong_is_said_with_the_file(tmp_path: Path, text: str, said: str) -> None:
    pipe = toy_pipeline()
    with pytest.raises(ConfigError, match=said) as refused:
        accelerate(pipe, written(tmp_path, text))
    assert str(refused.value).startswith(str(tmp_path / "cache.yaml"))
    assert type(pipe).__name__ == "ToyPipeline"


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        accelerate(toy_pipeline(), tmp_path / "other.yml")
