"""The house: where things lie, and which way imports go."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LINKED = ("kernels", "schedulers", "profiling", "evals")

ALLOWED = {
    "kernels": {"kernels"},
    "schedulers": {"schedulers", "kernels"},
    "core": {"core", "schedulers", "kernels"},
    "profiling": {"profiling", "core", "schedulers", "kernels"},
    "evals": {"evals", "profiling", "core", "schedulers", "kernels"},
    "scripts": {"evals", "profiling", "core", "schedulers", "kernels"},
}
KERNELS_MAY_USE = {"torch", "triton", "diffcache"} | set(sys.stdlib_module_names)


def sources() -> list[Path]:
    folders = [*LINKED, "diffcache", "scripts"]
    return [
        path
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not any(parent.is_symlink() for parent in path.parents)
    ]


def home(module: str) -> str:
    """The house's room that an imported `diffcache...` module lies in."""
    room = module.split(".")[1] if "." in module else "core"
    return room if room in LINKED else "core"


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_down_only(path: Path) -> None:
    folder = path.relative_to(ROOT).parts[0]
    own = folder if folder in ALLOWED else "core"
    names = imports(path)
    ours = {home(name) for name in names if name.split(".")[0] == "diffcache" and name != "diffcache"}
    lazy = (
        {"profiling"} if path.name == "__init__.py" else set()
    )  # `tune` is exported, and imported when first used
    assert ours <= ALLOWED[own] | lazy, f"{path.name} imports from {sorted(ours - ALLOWED[own])}"
    if own == "kernels":
        assert {name.split(".")[0] for name in names} <= KERNELS_MAY_USE


@pytest.mark.parametrize("name", LINKED)
def test_root_folders_are_linked_into_the_package(name: str) -> None:
    link = ROOT / "diffcache" / name
    assert link.is_symlink()
    assert link.resolve() == ROOT / name
    assert not (ROOT / name / "__init__.py").exists()


def test_no_module_shadows_a_public_function() -> None:
    import diffcache

    modules = {path.stem for path in (ROOT / "diffcache").iterdir()}
    assert not modules & {*diffcache.__all__, "discover", "tune", "generate"}


def test_importing_the_package_and_a_kernel_stays_light() -> None:
    code = (
        "import sys, diffcache, diffcache.kernels.extrapolate; "
        "heavy = {'diffusers', 'transformers', 'matplotlib'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_room_has_a_folder_of_tests() -> None:
    rooms = {path.name for path in (ROOT / "diffcache").iterdir() if path.is_dir()} - {"__pycache__"}
    assert rooms <= {path.name for path in (ROOT / "tests").iterdir()}


def test_what_tests_share_lies_in_no_test_module() -> None:
    for path in (ROOT / "tests").rglob("*.py"):
        parts = {part for name in imports(path) for part in name.split(".")}
        assert not [part for part in parts if part.startswith("test_")], path
