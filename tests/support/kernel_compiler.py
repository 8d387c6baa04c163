"""Compiles every kernel for a GPU, which needs none, and prints what each does to memory, as JSON.

`python kernel_compiler.py 90` compiles for an H100 or H200, 80 for an A100, 100 for a B200.
Run by `tests/kernels/test_gpu_code.py` in a process of its own, since there Triton must not interpret.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from diffcache.kernels import (
    attention_drift_triton,
    attention_probe_triton,
    extrapolate_triton,
    likeliest_triton,
    probe_triton,
    quantize_triton,
    relative_l1_triton,
    residual_triton,
    rope_scatter_triton,
    row_drift_triton,
)

MEMORY = re.compile(r"(?:ld|st)\.global[\w.:]*")


class NoDevice:
    """Stands for a GPU as far as compiling goes.

    Args:
        capability: compute capability, 90 for 9.0.
    """

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def stack_bytes(cubin: bytes) -> int:
    """What a thread keeps in memory because it has too few registers."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return sum(int(found) for found in re.findall(r"(?:STACK|LOCAL):(\d+)", usage))


def compile_only(found: dict[str, Counter[str]], capability: int) -> None:
    """Makes launches compile, and note their memory accesses, instead of running."""
    driver.set_active(NoDevice(capability))
    launch = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        compiled = launch(self, *args, grid=grid, warmup=True, **kwargs)
        counts = found.setdefault(self.fn.__name__, Counter())
        counts.update(MEMORY.findall(compiled.asm["ptx"]))
        counts["fused"] += compiled.asm["ptx"].count("fma.rn.")
        counts["stack"] += stack_bytes(compiled.asm["cubin"])
        return compiled

    JITFunction.run = run


def launch_all(dtype: torch.dtype, eight_bits: list[torch.dtype]) -> None:
    """One launch of each kernel at least, on tensors whose contents nobody reads."""
    x = torch.zeros(2, 64, 3072, dtype=dtype)
    probe_triton.probe_kernel[(1,)](x)
    relative_l1_triton.mean_abs(x[:, :32])
    residual_triton.subtract(x[:, :32], x[:, :32], dtype)
    relative_l1_triton.secant_means(x, x, x, x)
    residual_triton.subtract(x, x, torch.float32)
    extrapolate_triton.weighted_sum([x.double()] * 3, [], [3.0, -3.0, 1.0], x, None, None, -1, False, dtype)
    scales, by_channel = torch.zeros(2, 64, 1), torch.zeros(2, 3072)
    for stored in eight_bits:
        quantize_triton.quantize_rows(x, x, stored)
        extrapolate_triton.weighted_sum(
            [x.to(stored)] * 2, [scales] * 2, [2.0, -1.0], x, by_channel[0], by_channel, -1, True, dtype
        )  # fmt: skip
    q, keys = torch.zeros(1, 32, 32, 128, dtype=dtype), torch.zeros(1, 8, 512, 128, dtype=dtype)
    rows, table, new = torch.zeros(1, 32, dtype=torch.int64), torch.zeros(1, 32, 128, dtype=dtype), q[:, :8]
    for tables in (table, table.float()):
        rope_scatter_triton.rope_scatter(q, new, new, tables, tables, rows, keys, keys)
    row_drift_triton.replace_and_compare(new, new)
    valid = torch.ones(1, 512, dtype=torch.bool)
    attention_probe_triton.attention_received(q, keys, torch.ones(1, 32), valid, 0.1)
    share = torch.ones(1, 24)
    for over_keys in (False, True):
        attention_drift_triton.attention_drift(q, share, q[:, :, :8], keys, rows, new, valid, 0.1, over_keys)
    likeliest_triton.likeliest(torch.zeros(4, 126464, dtype=dtype))


if __name__ == "__main__":
    accesses: dict[str, Counter[str]] = {}
    capability = int(sys.argv[1])
    compile_only(accesses, capability)
    launch_all(torch.bfloat16, [torch.int8, torch.float8_e4m3fn] if capability >= 89 else [torch.int8])
    print(json.dumps(accesses))
