"""A hook of `mkdocs build`: copies the sources with an `__init__.py` in every folder, which mkdocstrings needs to find modules.

`mkdocs.yml` names it as scripts/site_hooks.py. The rooms of the package have none (docs/architecture.md).
"""

import shutil
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COPY = ROOT / "outputs" / "api_sources" / "diffcache"


def on_startup(**_: Any) -> None:
    """Called by mkdocs before it reads anything."""
    shutil.rmtree(COPY, ignore_errors=True)
    shutil.copytree(ROOT / "diffcache", COPY, ignore=_all_but_sources)  # the linked folders too
    for folder in (path for path in COPY.rglob("*") if path.is_dir()):
        (folder / "__init__.py").touch()


def _all_but_sources(folder: str, names: list[str]) -> list[str]:
    return [
        name
        for name in names
        if not name.endswith(".py")
        and ("." in name or not (Path(folder) / name).is_dir() or name in ("__pycache__", "results"))
    ]
