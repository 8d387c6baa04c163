"""The attention probe: how much attention each key receives, and which keys belong to the picture."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from diffcache.profiling.calibrating.attention import attention_received, keys_of_picture


def test_attention_received_is_the_mean_weight_of_each_key() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 4, 5, 8, generator=generator), torch.randn(2, 2, 7, 8, generator=generator)
    identity = torch.eye(7).expand(2, 4, 7, 7)
    weights = scaled_dot_product_attention(query, key.repeat_interleave(2, 1), identity)
    torch.testing.assert_close(attention_received(query, key), weights.mean((1, 2)))


class TextAndPicture(nn.Module):
    """One joint attention, with the text on either side, and a cross-attention."""

    def __init__(self, text_first: bool) -> None:
        super().__init__()
        self.text_first = text_first

    def forward(self, hidden_states: Tensor, timestep: Tensor, encoder_hidden_states: Tensor) -> Tensor:
        parts = [encoder_hidden_states, hidden_states]
        x = torch.cat(parts if self.text_first else parts[::-1], 1).unsqueeze(1)
        scaled_dot_product_attention(x, x, x)
        text = encoder_hidden_states.unsqueeze(1)
        return scaled_dot_product_attention(hidden_states.unsqueeze(1), text, text).squeeze(1)


@pytest.mark.parametrize("text_first", [True, False])
def test_the_keys_of_the_picture_are_told_from_those_of_the_text(text_first: bool) -> None:
    kwargs = {
        "hidden_states": torch.randn(2, 6, 4),
        "timestep": torch.tensor(5),
        "encoder_hidden_states": torch.randn(2, 3, 4),
    }
    found = keys_of_picture(TextAndPicture(text_first), (), kwargs)
    text, picture = [False] * 3, [True] * 6
    assert {keys: mask.tolist() for keys, mask in found.items()} == {
        9: text + picture if text_first else picture + text
    }
