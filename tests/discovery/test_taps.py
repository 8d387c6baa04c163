"""Taps: what a signal is measured on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from diffcache import accelerate, denoising_run, report
from diffcache.discovery.taps import Tap
from diffcache.schedulers.errors import TargetError


class TextFirstBlock(nn.Module):
    """Returns the text first, as Flux's blocks do. The text changes from call to call, and the picture's change does not."""

    def forward(self, hidden_states: Tensor, text: Tensor, time: float) -> tuple[Tensor, Tensor]:
        return text + time, hidden_states * 1.5


class OtherBlock(TextFirstBlock):
    pass


class TextFirst(nn.Module):
    """Its blocks, perhaps of several classes; something may be added between them, as a control network does."""

    def __init__(self, kinds: Sequence[type[nn.Module]], added: float = 0.0) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([kind() for kind in kinds])
        self.added = added

    def forward(self, hidden_states: Tensor, text: Tensor, time: float) -> Tensor:
        for block in self.blocks:
            text, hidden_states = block(hidden_states, text, time)
            if self.added:
                hidden_states = hidden_states + self.added
        return hidden_states + text.mean()


@pytest.mark.parametrize("tokens", [4, 6], ids=["as much text as picture", "more text"])
@pytest.mark.parametrize("added", [0.0, 0.5], ids=["as it is", "added to"])
@pytest.mark.parametrize(
    "kinds", [[TextFirstBlock] * 3, [TextFirstBlock, OtherBlock, OtherBlock]], ids=["alike", "others"]
)
def test_a_change_is_that_of_the_picture_even_where_the_text_has_its_shape(
    kinds: Sequence[type[nn.Module]], added: float, tokens: int
) -> None:
    net = accelerate(TextFirst(kinds, added).eval(), "fbcache", threshold=0.01)
    picture = torch.ones(1, 4, 8)
    with torch.no_grad(), denoising_run(net, 6) as run:
        for i in range(6):
            run.begin_step(i)
            net(picture, torch.zeros(1, tokens, 8), float(i))
    assert report(net).computed_ticks == [0]  # the picture changes alike at each tick


def test_a_tap_on_a_module_that_is_not_there_says_so() -> None:
    with pytest.raises(TargetError, match="does not call a module 'norm1'"):
        Tap(inside="norm1").ahead(TextFirstBlock(), (torch.ones(1, 4, 8), torch.ones(1, 4, 8), 0.0), {})
