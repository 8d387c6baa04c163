"""The kernels compile for a GPU, spill no registers, and read memory in 128-bit pieces; the interpreter cannot show this."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KERNELS = {
    name
    for path in (ROOT / "kernels").glob("*_triton.py")
    for name in re.findall(r"^def (\w+_kernel)\(", path.read_text(), re.MULTILINE)
}
AT_THE_MEMORY_LIMIT = {
    "l1_kernel",
    "subtract_kernel",
    "weighted_sum_kernel",
    "quantize_kernel",
}


def compiled_for(capability: int, cache: Path) -> dict[str, dict[str, int]]:
    """By kernel: its loads and stores, as PTX instructions with how often they stand in the code, and bytes of stack."""
    environment = {
        "PYTHONPATH": str(ROOT),
        "TRITON_CACHE_DIR": str(cache),
        "PATH": "/usr/bin:/bin",
    }
    run = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "support" / "kernel_compiler.py"), str(capability)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    compiled: dict[str, dict[str, int]] = json.loads(run.stdout)
    return compiled


@pytest.fixture(scope="module")
def accesses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    """Of an H100 or H200."""
    return compiled_for(90, tmp_path_factory.mktemp("triton"))


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 100])
def test_every_kernel_compiles_for_other_gpus(capability: int, tmp_path: Path) -> None:
    found = compiled_for(capability, tmp_path)
    assert set(found) == KERNELS
    assert not {name: each["stack"] for name, each in found.items() if each["stack"]}


def test_every_kernel_compiles(accesses: dict[str, dict[str, int]]) -> None:
    assert set(accesses) == KERNELS


def test_no_kernel_spills_registers(accesses: dict[str, dict[str, int]]) -> None:
    assert not {name: found["stack"] for name, found in accesses.items() if found["stack"]}


def test_products_of_a_rotation_are_rounded_before_they_are_added(
    accesses: dict[str, dict[str, int]],
) -> None:
    assert accesses["rope_scatter_kernel"]["fused"] == 0


@pytest.mark.parametrize("name", sorted(AT_THE_MEMORY_LIMIT))
def test_features_move_in_128_bit_pieces(name: str, accesses: dict[str, dict[str, int]]) -> None:
    loads = {access for access in accesses[name] if access.startswith("ld.global")}
    assert loads & {"ld.global.v4.b32", "ld.global.v2.b64"}
    assert not [access for access in loads if access.endswith((".b16", ".b8"))]
