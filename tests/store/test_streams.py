"""How outputs are split, matched to inputs, stored and put together again."""

from collections import namedtuple
from typing import Any

import pytest
import torch
from diffusers.models.modeling_outputs import Transformer2DModelOutput
from torch import Tensor, nn

from diffcache.host.call import Call
from diffcache.kernels.extrapolate import NO_CORRECTION
from diffcache.store.streams import Layout

Pair = namedtuple("Pair", ["video", "audio"])


class Takes(nn.Module):
    def forward(
        self, hidden_states: Any, timestep: Any = None, audio: Any = None, text: Any = None
    ) -> Any: ...


def call(**arguments: Any) -> Call:
    return Call.of(Takes(), (), arguments)


def hold(layout: Layout, at: Call, outputs: list[Tensor], now: Call) -> list[Tensor]:
    return layout.predict(
        now.tensors, [layout.features(at.tensors, outputs)], [1.0], [NO_CORRECTION] * len(outputs)
    )


@pytest.mark.parametrize(
    "wrap",
    [
        lambda v: v,
        lambda v: (v,),
        lambda v: {"sample": v, "note": "x"},
        lambda v: Transformer2DModelOutput(sample=v),
        lambda v: [v, None],
    ],
    ids=["tensor", "tuple", "dict", "output class", "list with None"],
)
def test_any_output_is_taken_apart_and_put_together(wrap: Any) -> None:
    x, v = torch.randn(2, 4, 8, 8), torch.randn(2, 4, 8, 8)
    at = call(hidden_states=x)
    layout = Layout(at, wrap(v), residual=True)
    other = torch.randn(2, 4, 8, 8)
    joined = layout.join([other], at.tensors)
    assert type(joined) is type(wrap(v))
    assert torch.equal(layout.split(joined)[0], other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_holding_gives_the_output_to_the_bit_when_the_input_stands_still(dtype: torch.dtype) -> None:
    x, v = torch.randn(2, 4, 8, 8).to(dtype), (50 * torch.randn(2, 4, 8, 8)).to(dtype)
    at = call(hidden_states=x)
    layout = Layout(at, v, residual=True)
    held = hold(layout, at, [v], call(hidden_states=x.clone()))[0]
    assert held.dtype == dtype
    assert torch.equal(held, v)


def test_a_reused_residual_moves_with_the_input() -> None:
    x, v = torch.zeros(1, 4, 2, 2), torch.ones(1, 4, 2, 2)
    at = call(hidden_states=x)
    held = hold(Layout(at, v, residual=True), at, [v], call(hidden_states=x + 5))[0]
    assert torch.equal(held, v + 5)


def test_more_channels_in_than_out_are_cut() -> None:
    x, v = torch.randn(1, 36, 2, 4, 4), torch.randn(1, 16, 2, 4, 4)
    at = call(hidden_states=x)
    layout = Layout(at, v, residual=True)
    assert torch.equal(layout.latents(at.tensors)[0], x[:, :16])
    moved = x.clone()
    moved[:, 16:] += 1  # the conditioning channels are no latent
    assert torch.equal(hold(layout, at, [v], call(hidden_states=moved))[0], v)


def test_more_channels_out_than_in_are_measured_on_the_first() -> None:
    x, v = torch.randn(1, 4, 4, 4), torch.randn(1, 8, 4, 4)
    at = call(hidden_states=x)
    layout = Layout(at, v, residual=True)
    assert torch.equal(layout.evolved([v])[0], v[:, :4])
    held = hold(layout, at, [v], call(hidden_states=x + 1))[0]
    torch.testing.assert_close(held[:, :4], v[:, :4] + 1)
    assert torch.equal(held[:, 4:], v[:, 4:])


def test_two_streams_find_their_own_inputs() -> None:
    at = call(hidden_states=torch.randn(1, 6, 8), audio=torch.randn(1, 3, 8), text=torch.randn(1, 5, 8))
    layout = Layout(at, Pair(torch.randn(1, 6, 8), torch.randn(1, 3, 8)), residual=True)
    assert layout.sources() == {"hidden_states", "audio"}


def test_an_argument_that_is_handed_on_is_not_stored() -> None:
    cache, x = torch.randn(2, 3), torch.randn(1, 4, 4)
    at = call(hidden_states=x, audio={"keys": cache})
    layout = Layout(at, (torch.randn(1, 4, 4), {"keys": cache}), residual=True)
    now = call(hidden_states=x, audio={"keys": torch.zeros(2, 3)})
    assert len(layout.streams) == 1
    assert layout.join([x], now.tensors)[1]["keys"] is now.tensors["audio.keys"]


def test_list_valued_latents_are_streams_of_their_own() -> None:
    xs = [torch.randn(4, 1, 6, 6), torch.randn(4, 1, 8, 6)]
    layout = Layout(call(hidden_states=xs), [torch.randn_like(x) for x in xs], residual=True)
    assert layout.sources() == {"hidden_states.0", "hidden_states.1"}


def test_what_is_stored_shares_no_memory_with_the_caller() -> None:
    x, v = torch.randn(1, 4, 4), torch.randn(1, 4, 4)
    at = call(hidden_states=x)
    for residual in (True, False):
        layout = Layout(at, v.clone(), residual=residual)
        output = v.clone()
        feature = layout.features(at.tensors, [output])
        output.zero_()
        assert torch.equal(layout.predict(at.tensors, [feature], [1.0], [NO_CORRECTION])[0], v)
        layout.predict(at.tensors, [feature], [1.0], [NO_CORRECTION])[0].zero_()
        assert torch.equal(layout.predict(at.tensors, [feature], [1.0], [NO_CORRECTION])[0], v)


def test_a_layout_is_kept_for_calls_that_look_alike_only() -> None:
    x, v, handed_on = torch.randn(1, 4, 8), torch.randn(1, 4, 8), torch.zeros(2)
    layout = Layout(call(hidden_states=x, text=handed_on), (v, None, handed_on), residual=True)
    given = layout.given((), {"hidden_states": torch.randn(1, 4, 8), "text": torch.ones(2)})
    alike = layout.pairs_if_fits((v + 1, None, given["text"]), given)
    assert alike is not None
    [(output, base)] = alike
    assert torch.equal(output, v + 1)
    assert base is given["hidden_states"]
    for output in (
        (v.half(), None, given["text"]),
        (v[:, :3], None, given["text"]),
        (v, 1, given["text"]),
        (v, v, given["text"]),
        (None, None, given["text"]),
        (v, None, handed_on),
        ((v,), None, given["text"]),
        (v, None),
        [v, None, given["text"]],
    ):
        assert layout.pairs_if_fits(output, given) is None
    assert layout.pairs_if_fits((v, None, given["text"]), {**given, "hidden_states": x[:, :3]}) is None


@pytest.mark.parametrize("wrap", [lambda v: {"a": v}, lambda v: [v], lambda v: ((v,), 1)])
def test_nested_outputs_are_compared_by_structure(wrap: Any) -> None:
    x, v = torch.randn(1, 4, 8), torch.randn(1, 4, 8)
    layout = Layout(call(hidden_states=x), wrap(v), residual=True)
    for other in ({"a": v}, {"b": v}, [v], [v, v], ((v,), 1), ((v,), 2), (v, 1)):
        alike = layout.pairs_if_fits(other, {"hidden_states": x})
        assert (alike is not None) == (str(other) == str(wrap(v)))
