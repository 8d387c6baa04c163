"""The house: where things lie, and which way imports go. docs/architecture.md shows it as a picture."""

import ast
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BASE = ("kernels", "schedulers")
ROOMS: dict[str, tuple[str, ...]] = {
    "kernels": (),
    "schedulers": ("kernels",),
    "hooks": ("schedulers",),
    "host": ("schedulers", "hooks"),
    "noise_schedulers": ("schedulers",),
    "trajectory": ("schedulers",),
    "prediction": (*BASE, "trajectory"),
    "reports": ("schedulers",),
    "store": (*BASE, "host", "noise_schedulers", "prediction"),
    "discovery": (*BASE, "hooks", "host"),
    "tokens": ("schedulers", "hooks", "host", "store", "discovery"),
    "method_config": ("schedulers",),
    "config": ("schedulers", "method_config", "prediction", "store", "discovery", "tokens"),
    "quantization": ("schedulers", "host", "prediction", "discovery", "config"),
    "recipes": (
        *BASE[1:],
        "trajectory",
        "host",
        "prediction",
        "store",
        "discovery",
        "tokens",
        "method_config",
        "config",
    ),
    "language": (*BASE, "hooks", "host", "method_config"),
}
ROOMS["engine"] = (
    *BASE, "hooks", "host", "noise_schedulers", "prediction", "reports", "store", "discovery", "tokens", "config",
)  # fmt: skip
ROOMS["attach"] = (*ROOMS["engine"], "engine")
ROOMS["rollouts"] = (*BASE, "hooks", "host", "store", "attach")
ROOMS["planning"] = (*ROOMS["attach"], "attach", "recipes")
ROOMS["profiling"] = (
    *ROOMS["planning"],
    "planning",
    "method_config",
    "quantization",
    "trajectory",
)
ROOMS["api"] = (*ROOMS["profiling"], "profiling", "language")
ROOMS["server"] = (*ROOMS["api"], "api")
ROOMS["evals"] = (*ROOMS["server"], "server", "rollouts")
ROOMS["command"] = (*ROOMS["evals"], "evals")
ROOMS["__init__"] = (*ROOMS["command"], "command")
ROOMS["scripts"] = (*ROOMS["__init__"], "__init__")
"""Each room, and the rooms that its modules may import, lazily and for types too. Inside a room any module may import any
other, as long as there is no circle."""

INNER: dict[str, dict[str, tuple[str, ...]]] = {
    "profiling": {
        "recording": (),
        "searching": ("recording",),
        "calibrating": ("recording", "searching"),
        "tuning": ("recording", "searching", "calibrating"),
    },
}
"""Rooms inside a room."""

MOST_LINES = 300
"""Of a file of the package."""

KERNELS_MAY_USE = {"torch", "triton", "diffcache"} | set(sys.stdlib_module_names)


_spec = spec_from_file_location("rooms", ROOT / "scripts" / "tables" / "rooms.py")
assert _spec is not None
assert _spec.loader is not None
rooms = module_from_spec(_spec)
_spec.loader.exec_module(rooms)


def violations(found: Mapping[str, set[str]]) -> list[str]:
    wrong = []
    for module, imported in found.items():
        own = rooms.room_of(module)
        for other in sorted(imported):
            room = rooms.room_of(other)
            if room != own and room not in ROOMS[own]:
                wrong.append(f"{module} imports {other}: {own} may not import {room}")
            inner = INNER.get(own, {}) if room == own else {}
            mine, theirs = module.split(".")[2:3], other.split(".")[2:3]
            if inner and mine != theirs and theirs[0] not in inner[mine[0]]:
                wrong.append(f"{module} imports {other}: {own}.{mine[0]} may not import {own}.{theirs[0]}")
    return wrong


def circle(found: Mapping[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, or none."""
    done: set[str] = set()

    def visit(module: str, above: list[str]) -> list[str]:
        if module in above:
            return [*above[above.index(module) :], module]
        if module not in done:
            for other in sorted(found.get(module, ())):
                if found_circle := visit(other, [*above, module]):
                    return found_circle
            done.add(module)
        return []

    return next((path for module in sorted(found) if (path := visit(module, []))), [])


def test_every_room_is_in_the_table() -> None:
    assert {rooms.room_of(module) for module in rooms.graph()} == set(ROOMS)


def test_imports_follow_the_table() -> None:
    assert violations(rooms.graph()) == []


def test_no_module_imports_itself_through_others() -> None:
    lazy = {
        "diffcache": set[str]()
    }  # the package exports names from everywhere, and imports them when they are asked for
    assert circle({**rooms.graph(), **lazy}) == []


def test_the_table_has_no_circle() -> None:
    assert circle({room: set(allowed) for room, allowed in ROOMS.items()}) == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("diffcache.store.rings", "from diffcache.engine.decider import Decider"),
        ("diffcache.reports.records", "if TYPE_CHECKING:\n    from diffcache.engine import runs"),
        ("diffcache.config", "def late():\n    import diffcache.recipes.uniform"),
        (
            "diffcache.attach.attach",
            "from importlib import import_module\nimport_module('diffcache.planning.plan')",
        ),
        ("diffcache.profiling.recording.record", "from diffcache.profiling.searching import space"),
        (
            "diffcache.profiling.tuning.tune",
            "import diffcache.evals.testbeds.zoo",
        ),
    ],
)
def test_an_import_against_the_table_is_found(module: str, line: str) -> None:
    found = rooms.graph()
    found[module] = found[module] | rooms.imports(line, found)
    assert len(violations(found)) == 1


def test_a_circle_inside_a_room_is_found() -> None:
    found = rooms.graph()
    found["diffcache.host.compiled"] = {"diffcache.host.components"}
    assert set(circle({**found, "diffcache": set()})) == {
        "diffcache.host.compiled",
        "diffcache.host.components",
    }


def test_the_picture_of_the_rooms_is_what_the_imports_are() -> None:
    drawn = rooms.drawn(rooms.between_rooms(rooms.graph()))
    assert (ROOT / "docs" / "rooms.svg").read_text() == drawn, "run python scripts/tables/rooms.py"


def test_kernels_need_torch_and_triton_alone() -> None:
    for path in (ROOT / "kernels").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {name.split(".")[0] for name in names} <= KERNELS_MAY_USE, path.name


def test_no_file_has_more_than_three_hundred_lines() -> None:
    lengths = {rooms.module_of(path): len(path.read_text().splitlines()) for path in rooms.sources()}
    too_long = {module: length for module, length in lengths.items() if length > MOST_LINES}
    assert too_long == {}, "move what is a concept of its own into a file that says what it is"


def test_the_package_shows_rooms_and_few_modules() -> None:
    inside = [path for path in (ROOT / "diffcache").iterdir() if path.name != "__pycache__"]
    assert len([path for path in inside if path.is_file()]) <= 6
    assert {path.name for path in inside if path.is_dir()} <= set(ROOMS)


@pytest.mark.parametrize("name", rooms.LINKED)
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
    folders = {path.name for path in (ROOT / "diffcache").iterdir() if path.is_dir()} - {"__pycache__"}
    assert folders <= {path.name for path in (ROOT / "tests").iterdir()}


def test_what_tests_share_lies_in_no_test_module() -> None:
    for path in (ROOT / "tests").rglob("*.py"):
        tree = ast.walk(ast.parse(path.read_text()))
        names = [node.module or "" for node in tree if isinstance(node, ast.ImportFrom)]
        assert not [name for name in names if name.rpartition(".")[2].startswith("test_")], path
