"""Denoisers whose computed calls do not all look alike: what the ones before left is not mixed with what comes after."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from diffcache import accelerate, denoising_run

CHANGES = 3
TICKS = 9


class Changing(nn.Module):
    """Returns x + t, and from some tick on in another form."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    def forward(self, x: Tensor, t: Tensor, text: Tensor) -> Any:
        v, late = x + t, bool(t >= CHANGES)
        return {
            "grows": lambda: (v, 2 * v) if late else (v,),
            "other dtype": lambda: (v.double() if late else v,),
            "other shape": lambda: (v, torch.zeros(1, 2 + late, 4)),
            "makes what it handed on": lambda: (v, 1 * text if late else text),
            "hands on what it made": lambda: (v, text if late else 1 * text),
            "other constant": lambda: (v, 1 if late else True),
            "other order": lambda: {"b": v + 100, "a": v} if late else {"a": v, "b": v + 100},
        }[self.form]()


FORMS = ["grows", "other dtype", "other shape", "makes what it handed on", "hands on what it made",
         "other constant", "other order"]  # fmt: skip


def outputs(net: nn.Module, begin: Any) -> list[Any]:
    found = []
    for tick in range(TICKS):
        begin(tick)
        found.append(
            net(torch.arange(8.0).reshape(1, 2, 4), torch.tensor([float(tick)]), text=torch.ones(1, 3, 4))
        )
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", ["uniform", "even"])
@torch.no_grad()
def test_an_output_that_changes_its_form(form: str, method: str) -> None:
    """Lines in t are extrapolated exactly, but for the ticks between the change and the next computed one."""
    options = (
        {"interval": 3, "order": 1, "axis": "tick", "tail_steps": 0}
        if method == "uniform"
        else {"speedup": 2, "axis": "tick", "tail_steps": 2}
    )
    net = Changing(form).eval()
    plain = outputs(net, lambda tick: None)
    with denoising_run(accelerate(net, method, **options), TICKS) as run:
        cached = outputs(net, run.begin_step)
    for expected, found in zip(plain[-2:], cached[-2:], strict=True):
        assert type(found) is type(expected)
        leaves = (
            zip(expected.values(), found.values(), strict=True)
            if isinstance(found, dict)
            else zip(expected, found, strict=True)
        )
        for own, other in leaves:
            assert type(own) is type(other)
            assert not isinstance(own, Tensor) or own.dtype == other.dtype
            assert not isinstance(own, Tensor) or torch.allclose(own, other, atol=1e-4)
