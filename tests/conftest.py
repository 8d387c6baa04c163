"""One thread: the tiny networks of these tests are many times slower with more."""

import torch

torch.set_num_threads(1)
