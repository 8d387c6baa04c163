"""The wheel, in an environment of its own and outside of the checkout: every verb runs on pipelines that users saved in bfloat16."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from support.bare_environment import bare, built, ran
from support.saved_pipelines import OPTIONS, save_random

ROOT = Path(__file__).resolve().parents[2]

DRIVER = """
import sys
import diffcache
from diffcache.command.main import main

assert diffcache.__file__.startswith(sys.prefix), diffcache.__file__
model, *options = sys.argv[1:]
given = ["--model", model, *options, "--steps", "4"]
verbs = (
    ["inspect", *given],
    ["plan", *given],
    ["tune", *given, "--speedup", "2", "--samples", "3", "--out", "tuned"],
    ["show", "tuned"],
    ["plan", "tuned", *given],
    ["compare", "tuned", *given, "--samples", "1"],
    ["evaluate", "tuned", *given, "--samples", "2", "--out", "evaluated"],
    ["demo", "tuned", *given, "--samples", "1", "--rounds", "1", "--out", "demo"],
    ["plan", *given, "--dtype", "bfloat16"],
    ["plan", *given, "--quantize", "int8"],
)
for arguments in verbs:
    print("diffcache", *arguments, flush=True)
    assert main(arguments) == 0, arguments
assert main(["demo", "--model", "flux"]) == 2  # testbeds come with the repository only
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the source archive."""
    return built(ROOT, tmp_path_factory.mktemp("wheel"))[0]


@pytest.fixture(scope="module")
def python(wheel: Path) -> Path:
    """The interpreter of an environment with the wheel, what it depends on, and nothing else."""
    return bare(wheel, wheel.parent / "bare")


@pytest.fixture(scope="module")
def environment(wheel: Path) -> Path:
    """The interpreter of an environment with the wheel alone, which sees the other packages of this one."""
    folder = wheel.parent
    pip = [sys.executable, "-m", "pip", "-q"]
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    python = folder / "venv" / "bin" / "python"
    subprocess.run([*pip, "--python", str(python), "install", "--no-deps", str(wheel)], check=True)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    packages = Path(sysconfig.get_path("purelib"))
    lines = [str(packages), *(f"import {shim.stem}" for shim in packages.glob("_torchvision_on_cpu.py"))]
    (site / "packages.pth").write_text("\n".join(lines) + "\n")
    return python


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", OPTIONS)
def test_every_verb_runs_from_the_wheel(name: str, environment: Path, tmp_path: Path) -> None:
    model = save_random(name, tmp_path / "model")
    printed = ran(environment, "-c", DRIVER, model, *OPTIONS[name], folder=tmp_path)
    assert "2 of 4 ticks" in printed
    assert (tmp_path / "evaluated" / "report.html").exists()


@pytest.mark.slow
def test_the_command_is_installed(environment: Path, tmp_path: Path) -> None:
    assert "tune" in ran(environment.with_name("diffcache"), "--help", folder=tmp_path)


@pytest.mark.slow
def test_the_wheel_has_one_small_testbed_and_no_results(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        sizes = {entry.filename: entry.file_size for entry in packed.infolist()}
    weights = [name for name in sizes if name.endswith((".safetensors", ".zip"))]
    assert weights == ["diffcache/evals/testbeds/emoji.zip"]
    assert sizes[weights[0]] < 3_000_000
    assert not [name for name in sizes if "/results/" in name or not name.startswith("diffcache")]
    assert "diffcache/evals/webpage/page.html.j2" in sizes


@pytest.mark.slow
def test_a_bare_environment_draws_the_demo_and_says_nothing_else(python: Path, tmp_path: Path) -> None:
    printed = ran(python.with_name("diffcache"), "demo", "--speedup", "2", folder=tmp_path)
    lines = printed.splitlines()
    assert lines[0].startswith("emoji: cat face on blue")
    assert re.match(r" *[\d.]+ s  full run: outputs/demo/full.png", lines[1])
    assert "14/28" in printed
    assert not [line for line in lines if re.search("warning|failed|unable", line, re.IGNORECASE)], printed
    assert {path.name for path in (tmp_path / "outputs" / "demo").iterdir()} == {
        "full.png", "pictures.png", "timeline.svg",
    }  # fmt: skip


@pytest.mark.slow
def test_libraries_that_cannot_load_their_parts_here_are_not_heard(environment: Path, tmp_path: Path) -> None:
    printed = ran(
        environment.with_name("diffcache"), "demo", "--samples", "1", "--steps", "4", folder=tmp_path
    )
    assert not re.findall("warning|failed|unable|deprecat", printed, re.IGNORECASE), printed


@pytest.mark.slow
def test_a_bare_environment_runs_the_quickstart(python: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "index.md").read_text()
    model = save_random("flux", tmp_path / "model")
    code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    for old, new in (
        ("black-forest-labs/FLUX.1-dev", str(model)),
        ('.to("cuda")', ""),
        ("=28", "=4, height=16, width=16"),
    ):
        assert old in code
        code = code.replace(old, new)
    assert "2 of 4 ticks computed" in ran(python, "-c", code, folder=tmp_path)


OLDEST = {
    "diffusers": ["diffusers==0.36.0"],
    "diffusers and transformers": [  # newer Diffusers need a hub library that this Transformers cannot use
        "diffusers==0.36.0", "transformers==4.56.0", "huggingface_hub==0.36.0", "tokenizers==0.22.0",
    ],
}  # fmt: skip
"""The lower bounds of pyproject.toml; of torch only the version in constraints.txt is at hand."""

ON_OLDEST = """
import sys
sys.path.insert(0, sys.argv[1])
from importlib.metadata import version
from diffcache.command.main import main

for requirement in sys.argv[2:]:
    name, wanted = requirement.split("==")
    assert version(name) == wanted, name
assert main(["demo", "--samples", "1", "--rounds", "1", "--steps", "8", "--speedup", "2"]) == 0
"""


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("older", OLDEST.values(), ids=OLDEST)
def test_the_demo_runs_with_the_oldest_versions(older: list[str], python: Path, tmp_path: Path) -> None:
    asked = (ROOT / "pyproject.toml").read_text()
    for requirement in older[:2]:
        assert f'"{requirement.replace("==", ">=").removesuffix(".0")}"' in asked
    pip = [sys.executable, "-m", "pip", "-q", "install", "--target", str(tmp_path / "old")]
    for wanted in (
        ["--no-deps", *older],
        ["httpx<1", "requests"],
    ):  # what newer versions do not ask for any more
        if subprocess.run([*pip, *wanted], check=False).returncode:
            pytest.skip("the oldest versions cannot be downloaded here")
    printed = ran(python, "-c", ON_OLDEST, tmp_path / "old", *older, folder=tmp_path)
    assert "| 4/8 |" in printed


@pytest.mark.slow
def test_what_needs_an_extra_says_which(python: Path, tmp_path: Path) -> None:
    needs = "import sys; from diffcache.command.main import main; sys.exit(main(sys.argv[1:]) - 2)"
    printed = ran(python, "-c", needs, "compare", "easycache", "--samples", "1", folder=tmp_path)
    assert "pip install '.[evals]'" in printed
    printed = ran(python, "-c", needs, "app", folder=tmp_path)
    assert "pip install '.[app]'" in printed
