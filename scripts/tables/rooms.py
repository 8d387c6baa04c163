"""Draws the rooms of the package, and which room imports which, from the imports themselves: docs/rooms.svg.

`python scripts/tables/rooms.py` writes the picture; tests/test_house.py checks that it is up to date.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from textwrap import wrap

ROOT = Path(__file__).resolve().parents[2]
Place = tuple[float, float]
LINKED = ("kernels", "schedulers", "profiling", "evals")
"""Folders beside the package that are linked into it."""

PURPOSES = {
    "kernels": "tensor operations",
    "schedulers": "when to compute; plain types; searches",
    "hooks": "how our code comes to be called",
    "host": "facts about other people's objects",
    "noise_schedulers": "all we know of them",
    "trajectory": "a run's outputs as a Gaussian process",
    "prediction": "the value of a reused tick",
    "reports": "what happened",
    "store": "what is kept",
    "discovery": "where a denoiser can be cut",
    "tokens": "how some of the tokens are computed",
    "method_config": "options: checked, saved, loaded",
    "config": "what a method is",
    "quantization": "weights in fewer bits",
    "recipes": "the methods",
    "language": "caches of language models",
    "engine": "one denoiser in one run",
    "attach": "on and off",
    "rollouts": "long video, chunk after chunk",
    "planning": "what a run will hold",
    "api": "the public functions",
    "server": "many requests, one denoiser",
    "profiling": "recordings, calibrations, searches",
    "evals": "testbeds, metrics, the race",
    "command": "the command diffcache and its verbs",
    "scripts": "measurements, tables, training",
}
BOX, GAP, LINE = (186, 64), (14, 34), 22
"""Sizes in pixels of a box and of what is between boxes, and the characters in a line of a box."""


def sources() -> Iterator[Path]:
    """Every Python file of the package, of the folders that are linked into it, and of the scripts."""
    for folder in (*LINKED, "diffcache", "scripts"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not any(parent.is_symlink() for parent in path.parents):
                yield path


def module_of(path: Path) -> str:
    """The name that a file is imported by; that of a script is its path."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    dotted = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return dotted if parts[0] in ("diffcache", "scripts") else f"diffcache.{dotted}"


def room_of(module: str) -> str:
    """The room that a module lies in: a folder or a module of the package."""
    parts = module.split(".")
    if parts[0] == "scripts":
        return "scripts"
    return parts[1] if len(parts) > 1 else "__init__"


def imports(source: str, modules: Iterable[str]) -> set[str]:
    """Our modules that a source imports, wherever the import stands, and those whose names it has as texts."""
    known, found = set(modules), set[str]()
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value] if node.value.startswith("diffcache.") else []
        for name in names:
            parts = name.split(".")
            ends = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
            found |= set([end for end in ends if end in known][:1])
    return found


def graph() -> dict[str, set[str]]:
    """By module, the modules that it imports."""
    paths = {module_of(path): path for path in sources()}
    return {module: imports(path.read_text(), paths) - {module} for module, path in paths.items()}


def between_rooms(modules: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """By room, the rooms that it imports. The package itself only hands names on, and is left out."""
    rooms: dict[str, set[str]] = {room_of(module): set() for module in modules}
    for module, imported in modules.items():
        rooms[room_of(module)] |= {room_of(other) for other in imported} - {room_of(module), "__init__"}
    del rooms["__init__"]
    return rooms


def floors_of(rooms: Mapping[str, set[str]]) -> dict[str, int]:
    """The floor of each room: one above the highest room that it imports."""
    floors: dict[str, int] = {}

    def floor(room: str) -> int:
        if room not in floors:
            floors[room] = 1 + max(map(floor, rooms[room]), default=-1)
        return floors[room]

    for room in sorted(rooms):
        floor(room)
    return floors


def reduced(rooms: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    """The imports that no other path stands for."""

    def below(room: str) -> set[str]:
        return rooms[room].union(*(below(other) for other in rooms[room]))

    return [
        (room, other)
        for room in sorted(rooms)
        for other in sorted(rooms[room])
        if not any(other in below(third) for third in rooms[room])
    ]


def drawn(rooms: Mapping[str, set[str]]) -> str:
    """The picture: the lowest floor at the bottom, arrows from a room to what it imports."""
    floors = floors_of(rooms)
    by_floor = [sorted(r for r in rooms if floors[r] == n) for n in range(max(floors.values()) + 1)]
    step_x, step_y = BOX[0] + GAP[0], BOX[1] + GAP[1]
    width = max(map(len, by_floor)) * step_x + GAP[0]
    height = len(by_floor) * step_y + GAP[1]
    at = {}
    for n, names in enumerate(by_floor):
        left = (width - len(names) * step_x + GAP[0]) / 2
        for i, name in enumerate(names):
            at[name] = (left + i * step_x, height - (n + 1) * step_y)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
        (
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#8794a8"/></marker></defs>'
        ),
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for room, other in reduced(rooms):
        passed = [[at[name] for name in by_floor[n]] for n in range(floors[room] - 1, floors[other], -1)]
        path = _arrow(at[room], at[other], passed)
        lines.append(f'<path d="{path}" fill="none" stroke="#8794a8" marker-end="url(#tip)"/>')
    for room, (x, y) in sorted(at.items()):
        lines.append(
            f'<rect x="{x:g}" y="{y:g}" width="{BOX[0]}" height="{BOX[1]}" rx="6" fill="#eef3fa" stroke="#1f5fa8"/>'
            f'<text x="{x + 9:g}" y="{y + 20:g}" font-size="16" font-weight="bold" fill="#12355f">{room}</text>'
        )
        lines += (
            f'<text x="{x + 9:g}" y="{y + 38 + 17 * i:g}" font-size="14" fill="#444">{escape(text)}</text>'
            for i, text in enumerate(wrap(PURPOSES[room], LINE))
        )
    return "\n".join([*lines, "</svg>", ""])


def _arrow(begin: Place, end: Place, passed: Iterable[Sequence[Place]]) -> str:
    """A path from below one box to above another, through gaps between the boxes of the floors that it passes."""
    x, y = begin[0] + BOX[0] / 2, begin[1] + BOX[1]
    aim, path = end[0] + BOX[0] / 2, f"M{x:g},{y:g}"
    for boxes in passed:
        lefts = [left for left, _ in boxes]
        gaps = [left - GAP[0] / 2 for left in lefts] + [lefts[-1] + BOX[0] + GAP[0] / 2]
        free = [aim, *gaps] if all(not left <= aim <= left + BOX[0] for left in lefts) else gaps
        gap = min(free, key=lambda place: abs(place - x) + abs(place - aim))
        path += f" {_curve((x, y), (gap, boxes[0][1]))} V{boxes[0][1] + BOX[1]:g}"
        x, y = gap, boxes[0][1] + BOX[1]
    return f"{path} {_curve((x, y), (aim, end[1]))}"


def _curve(begin: Place, end: Place) -> str:
    """From one height to another, vertical at both ends."""
    bend = (begin[1] + end[1]) / 2
    return f"C{begin[0]:g},{bend:g} {end[0]:g},{bend:g} {end[0]:g},{end[1]:g}"


def main() -> None:
    path = ROOT / "docs" / "rooms.svg"
    path.write_text(drawn(between_rooms(graph())))
    print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
