"""Prompt files, in every format that is read."""

import json
from pathlib import Path

import pytest

from diffcache.evals.errors import EvaluationError
from diffcache.evals.harness.prompts import read_prompts


def test_prompt_files(tmp_path: Path) -> None:
    def read(name: str, text: str) -> list[str]:
        (tmp_path / name).write_text(text)
        return read_prompts(tmp_path / name)

    assert read("a.txt", "one\n\n two \n") == ["one", "two"]
    assert read("parti.tsv", "Prompt\tCategory\na, cat\tAnimals\n") == ["a, cat"]
    quotes = '"Stop" on a sign'
    assert read("parti.tsv", f'Prompt\tCategory\n{quotes}\tArts\n"Go\tArts\na fox\tArts\n') == [
        quotes,
        '"Go',
        "a fox",
    ]
    assert read("own.csv", 'prompt,n\n"a, dog",1\n') == ["a, dog"]
    assert read("spreadsheet.csv", "\ufeffprompt\na fox\n") == ["a fox"]
    assert read("short.csv", "n,prompt\n1\n2,a fox\n") == ["a fox"]
    assert read("list.json", '["x", "y"]') == ["x", "y"]
    assert read("mjhq.json", '{"id": {"prompt": "fox", "category": "animals"}}') == ["fox"]
    assert read("vbench.json", '[{"prompt_en": "a bird", "dimension": ["color"]}]') == ["a bird"]
    captions = [{"image_id": 7, "caption": "first"}, {"image_id": 7, "caption": "second"}]
    assert read("coco.json", json.dumps({"annotations": captions})) == ["first"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", b"\n \n", "has no prompts"),
        ("bad.txt", b"\xff\xfe\xff", "cannot read prompts"),
        ("bad.json", b"{", "cannot read prompts"),
        ("other.json", b'[{"text": "x"}]', "none of prompt, Prompt"),
        ("string.json", b'"abc"', "neither a list nor an object"),
        ("huge.csv", b"prompt\n" + 200_000 * b"x", "cannot read prompts"),
        ("prompts.parquet", b"PAR1", "convert it"),
        ("missing.txt", None, "cannot read prompts"),
    ],
)
def test_unreadable_prompt_files(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(EvaluationError, match=message):
        read_prompts(tmp_path / name)
