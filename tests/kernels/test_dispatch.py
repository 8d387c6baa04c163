"""Ops run as Triton on CUDA, as plain PyTorch elsewhere, or as the switch says, and do what they declare to PyTorch."""

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from diffcache.kernels import dispatch
from diffcache.kernels.dispatch import FP8, SMALL, SWITCH
from diffcache.kernels.relative_l1 import mean_abs

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(path.stem for path in (ROOT / "kernels").glob("*.py") if not path.stem.endswith("_triton"))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> Callable[[], str]:
    """Calls an op and tells which implementation ran."""
    relative_l1_triton = pytest.importorskip("diffcache.kernels.relative_l1_triton")
    twin = relative_l1_triton.mean_abs
    ran = []
    monkeypatch.setattr(relative_l1_triton, "mean_abs", lambda *args: ran.append(1) or twin(*args))

    def runs() -> str:
        ran.clear()
        mean_abs(torch.randn(SMALL))
        return "triton" if ran else "reference"

    return runs


def test_the_switch(runs: Callable[[], str], device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    assert runs() == ("triton" if device.type == "cuda" else "reference")
    for choice in ("triton", "reference"):
        monkeypatch.setenv(SWITCH, choice)
        assert runs() == choice
    monkeypatch.setenv(SWITCH, "cuda")
    with pytest.raises(ValueError, match="set it to auto, triton or reference"):
        runs()


def test_the_switch_is_read_once_in_a_process() -> None:
    code = (
        "import os, torch; from diffcache.kernels.dispatch import SWITCH, uses_triton; "
        "first = uses_triton(torch.device('cpu')); os.environ[SWITCH] = 'unknown'; "
        "assert uses_triton(torch.device('cpu')) == first"
    )
    environment = {name: value for name, value in os.environ.items() if name != SWITCH}
    subprocess.run([sys.executable, "-c", code], check=True, env={**environment, "PYTHONPATH": str(ROOT)})


def test_triton_cannot_be_forced_on_a_cpu_that_interprets_nothing(
    runs: Callable[[], str], device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device.type == "cuda":
        pytest.skip("it can be forced here")
    monkeypatch.setenv(SWITCH, "triton")
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(RuntimeError, match="unset it to run on cpu"):
        runs()


def test_a_gpu_without_triton_runs_the_references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_installed", lambda: False)
    monkeypatch.delenv(SWITCH, raising=False)
    assert not dispatch.uses_triton(torch.device("cuda"))
    monkeypatch.setenv(SWITCH, "triton")
    with pytest.raises(RuntimeError, match="needs Triton and CUDA tensors"):
        dispatch.uses_triton(torch.device("cuda"))


def test_a_gpu_where_triton_cannot_build_runs_the_references_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails() -> None:
        raise RuntimeError("first line\nFailed to find C compiler.")

    probe_triton = pytest.importorskip("diffcache.kernels.probe_triton")
    dispatch._builds.cache_clear()
    monkeypatch.setattr(probe_triton, "run", fails)
    monkeypatch.delenv(SWITCH, raising=False)
    with pytest.warns(UserWarning, match="C compiler"):
        assert not dispatch.uses_triton(torch.device("cuda"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not dispatch.uses_triton(torch.device("cuda", 1))
    dispatch._builds.cache_clear()


def suits_triton(*arguments: Any) -> bool:
    return dispatch._suits_triton(arguments, dispatch._tensors(arguments))


def test_small_tensors_empty_ones_and_tensors_on_two_devices_take_pytorch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small, large = torch.zeros(SMALL - 1), torch.zeros(SMALL)
    monkeypatch.delenv(SWITCH, raising=False)
    assert not suits_triton(small)
    assert suits_triton(large)
    assert not suits_triton(large, [large.to("meta")])
    assert not suits_triton(large, [large[:0]])
    monkeypatch.setenv(SWITCH, "triton")
    assert suits_triton(small)


def test_the_probe_runs_a_kernel(device: torch.device) -> None:
    probe_triton = pytest.importorskip("diffcache.kernels.probe_triton")
    value = torch.zeros(1, device=device)
    probe_triton.probe_kernel[(1,)](value)
    assert value.item() == 1.0
    probe_triton.run()


def test_triton_is_imported_when_a_kernel_first_runs() -> None:
    imports = "; ".join(f"import diffcache.kernels.{name}" for name in MODULES)
    code = f"import sys; {imports}; heavy = {{'triton', 'diffusers'}} & set(sys.modules); assert not heavy, heavy"
    subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )


def sample_calls() -> dict[str, tuple[Any, ...]]:
    """Arguments for every op, by name."""
    x = torch.randn(2, 4, 6)
    last = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    q, keys = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4)
    rows = torch.tensor([[0, 4, 2]])
    rotated = q.mT.contiguous().mT
    rotation = (rotated, q, q, torch.randn(1, 3, 4), torch.randn(1, 3, 4), rows, keys, keys.clone())
    return {
        "mean_abs": (x, x + 1),
        "l1_means": (x, x + 1),
        "secant_means": (x, x + 1, x, x + 1),
        "subtract": (last, last + 1, torch.float64),
        "quantize_rows": (x, None, torch.int8),
        "weighted_sum": ([last, last], [], [2.0, -1.0], last, None, None, -1, False, torch.bfloat16),
        "rope_scatter": rotation,
        "replace_and_compare": (keys, keys + 1),
        "attention_received": (q, keys, torch.rand(1, 3), None, 0.5),
        "attention_drift": (
            q,
            torch.rand(1, 1),
            q[:, :, :2],
            keys,
            torch.tensor([[3, 1, 3]]),
            q,
            None,
            0.5,
            False,
        ),
        "likeliest": (torch.randn(4, 9),),
    }


@pytest.mark.parametrize("name", sample_calls())
@pytest.mark.parametrize("kernels", ["triton", "reference"])
def test_ops_are_what_they_declare(
    name: str, kernels: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, kernels)
    for module in MODULES:
        __import__(f"diffcache.kernels.{module}")
    registered = {
        op.split("::")[1].split(".")[0] for op in torch._C._dispatch_get_all_op_names() if "diffcache::" in op
    }
    assert registered == set(sample_calls())
    node = getattr(torch.ops.diffcache, name).default
    torch.library.opcheck(node, sample_calls()[name], test_utils=("test_schema", "test_faketensor"))


def test_an_op_is_one_node_of_a_compiled_graph(device: torch.device) -> None:
    called = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        called.extend(node.target for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    torch.compile(lambda a: mean_abs(a), backend=backend, fullgraph=True)(torch.randn(4))
    assert called == [torch.ops.diffcache.mean_abs.default]


def test_e4m3_runs_as_triton_only_where_triton_converts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "triton")
    with FakeTensorMode():  # has the devices' names without the devices
        x = torch.zeros(2, device="cuda")
    for capability, converts in (((9, 0), True), ((8, 9), True), ((8, 6), False)):
        monkeypatch.setattr(dispatch, "_capability", lambda device, capability=capability: capability)
        assert suits_triton(x, torch.int8)
        assert suits_triton(x, FP8) == converts
        assert suits_triton([x.to(FP8)], [x]) == converts
