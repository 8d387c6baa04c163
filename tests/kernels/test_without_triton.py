"""The tests of the ops pass on machines where Triton is missing or cannot build: what they test there are the references."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUN = "import sys; {first}import pytest; sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '-m', 'not slow', {what}]))"
OPS = sorted(
    str(path)
    for path in Path(__file__).parent.glob("test_*.py")
    if path.stem not in ("test_gpu_code", "test_without_triton")  # Triton's own code, and this one
)


def passes(first: str, what: list[str], **environment: str) -> str:
    """Runs tests in a process of their own, in which a statement comes first; returns what they print."""
    code = RUN.format(first=first, what=", ".join(map(repr, what)))
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-4000:]
    return run.stdout


@pytest.mark.slow
def test_without_triton() -> None:
    assert " passed" in passes(
        "sys.modules['triton'] = None; ", OPS
    )  # `import triton` fails, `find_spec` finds none


@pytest.mark.slow
def test_without_a_compiler(tmp_path: Path) -> None:
    some = [path for path in OPS if Path(path).stem in ("test_dispatch", "test_quantize", "test_residual")]
    assert " passed" in passes("", some, PATH=str(tmp_path), CC="")
