"""The smallest kernel: it tells whether Triton can build any."""

import torch
import triton
import triton.language as tl


@triton.jit
def probe_kernel(value):
    tl.store(value, 1.0)


def run() -> None:
    """Builds and runs it on the current device.

    Raises:
        RuntimeError: it ran, and wrote nothing. Triton raises what it raises where it cannot build.
    """
    value = torch.zeros(1, device="cuda" if torch.cuda.is_available() else "cpu")
    probe_kernel[(1,)](value)
    if not torch.cuda.is_available() or torch.cuda.is_current_stream_capturing():
        return
    if value.item() != 1.0:
        raise RuntimeError("a kernel was built, but it wrote nothing")
