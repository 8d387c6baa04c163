"""One thread: the tiny networks of these tests are many times slower with more. Without a GPU, kernels are interpreted."""

import os

import torch

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is first imported
