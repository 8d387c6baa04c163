"""What holds on a CPU holds on a CUDA device too."""

from dataclasses import replace

import pytest
import torch
from coverage_checks import run, same
from torch import Tensor
from zoo.denoiser_case import like
from zoo.denoisers import CASES

from diffcache import accelerate, report

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("name", ["FluxTransformer2DModel", "WanTransformer3DModel", "UNet2DConditionModel"])
def test_all_compute_is_exact_and_reuse_finite(name: str) -> None:
    on_cpu = CASES[name]
    case = replace(on_cpu, inputs=lambda generator, batch: like(on_cpu.inputs(generator, batch), Tensor.cuda))
    net = case.build().cuda()
    plain = run(case, net)
    accelerate(net, "easycache", threshold=0.0)
    assert same(run(case, net), plain)
    accelerate(net, "uniform", interval=2, order=1)
    assert all(torch.isfinite(x).all() for x in run(case, net))
    assert report(net).computed_ticks == [0, 2, 4, 5]
