"""One thread: the tiny networks of these tests are many times slower with more. Without a GPU, kernels are interpreted."""

import gc
import os

import pytest
import torch

from diffcache.kernels import dispatch

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is first imported


@pytest.fixture(autouse=True, scope="module")
def what_is_here_is_not_searched_for_garbage() -> None:
    """A collection takes half a second with all that is imported, and next to nothing without it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def switch_read_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test may set the kernels' switch, which is read once in a process otherwise."""
    monkeypatch.setattr(dispatch, "uses_triton", dispatch.uses_triton.__wrapped__)
