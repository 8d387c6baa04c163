"""A denoiser that takes tensors out of a list that it is given (T2I adapters) is reused like others; one that puts some there is not."""

from __future__ import annotations

import pytest
import torch
from support import flows
from support.harness import render
from torch import Tensor
from zoo.pipelines import CASES

from diffcache import accelerate, denoising_run, report
from diffcache.engine.whole_model import WRITES_ARGUMENTS

ADAPTER = "StableDiffusionAdapterPipeline"


@pytest.mark.parametrize(
    ("method", "options"), [("uniform", {"interval": 2}), ("trajectory", {"speedup": 2})]
)
def test_a_t2i_adapter_does_not_keep_the_unet_from_being_reused(method: str, options: dict[str, int]) -> None:
    pipe = accelerate(CASES[ADAPTER].build(), method, **options)
    render(pipe, ADAPTER)
    assert report(pipe).compute_fraction < 1
    assert WRITES_ARGUMENTS not in report(pipe).reasons


class Putting(flows.Plain):
    """Puts what it computes into a list."""

    def forward(self, x: Tensor, t: Tensor, made: list[Tensor]) -> Tensor:  # type: ignore[override]
        made.append(super().forward(x, t))
        return made[-1]


def test_a_list_that_is_filled_is_filled_at_every_call() -> None:
    net, lengths = accelerate(Putting().eval(), "uniform", interval=2), []
    with torch.no_grad(), denoising_run(net, 8) as loop:
        for tick in range(8):
            loop.begin_step(tick)
            made = [torch.full((1, 2, 4), 3.0)]
            net(torch.full((1, 2, 4), 5.0), torch.tensor([tick + 1.0]), made)
            lengths.append(len(made))
    assert lengths == [2] * 8
    assert WRITES_ARGUMENTS in report(net).reasons
