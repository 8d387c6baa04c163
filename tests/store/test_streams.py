"""How outputs are split, matched to inputs, stored and put together again."""

from collections import namedtuple
from typing import Any, get_args

import pytest
import torch
from diffusers.models.modeling_outputs import Transformer2DModelOutput
from torch import Tensor, nn

from diffcache.host.call import Call
from diffcache.noise_schedulers.levels import Parametrisation
from diffcache.store.streams import Basis, Layout, Past

Pair = namedtuple("Pair", ["video", "audio"])


class Takes(nn.Module):
    def forward(
        self, hidden_states: Any, timestep: Any = None, audio: Any = None, text: Any = None
    ) -> Any: ...


def call(**arguments: Any) -> Call:
    return Call.of(Takes(), (), arguments)


def hold(layout: Layout, at: Call, outputs: list[Tensor], now: Call) -> list[Tensor]:
    return layout.predict(now.tensors, Past([layout.features(at.tensors, outputs)], [1.0]))


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
    layout = Layout(at, wrap(v), basis="residual")
    other = torch.randn(2, 4, 8, 8)
    joined = layout.join([other], at.tensors)
    assert type(joined) is type(wrap(v))
    assert torch.equal(layout.split(joined)[0], other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_holding_gives_the_output_to_the_bit_when_the_input_stands_still(dtype: torch.dtype) -> None:
    x, v = torch.randn(2, 4, 8, 8).to(dtype), (50 * torch.randn(2, 4, 8, 8)).to(dtype)
    at = call(hidden_states=x)
    layout = Layout(at, v, basis="residual")
    held = hold(layout, at, [v], call(hidden_states=x.clone()))[0]
    assert held.dtype == dtype
    assert torch.equal(held, v)


def test_a_reused_residual_moves_with_the_input() -> None:
    x, v = torch.zeros(1, 4, 2, 2), torch.ones(1, 4, 2, 2)
    at = call(hidden_states=x)
    held = hold(Layout(at, v, basis="residual"), at, [v], call(hidden_states=x + 5))[0]
    assert torch.equal(held, v + 5)


def test_more_channels_in_than_out_are_cut() -> None:
    x, v = torch.randn(1, 36, 2, 4, 4), torch.randn(1, 16, 2, 4, 4)
    at = call(hidden_states=x)
    layout = Layout(at, v, basis="residual")
    assert torch.equal(layout.latents(at.tensors)[0], x[:, :16])
    moved = x.clone()
    moved[:, 16:] += 1  # the conditioning channels are no latent
    assert torch.equal(hold(layout, at, [v], call(hidden_states=moved))[0], v)


def test_more_channels_out_than_in_are_measured_on_the_first() -> None:
    x, v = torch.randn(1, 4, 4, 4), torch.randn(1, 8, 4, 4)
    at = call(hidden_states=x)
    layout = Layout(at, v, basis="residual")
    assert torch.equal(layout.evolved([v])[0], v[:, :4])
    held = hold(layout, at, [v], call(hidden_states=x + 1))[0]
    torch.testing.assert_close(held[:, :4], v[:, :4] + 1)
    assert torch.equal(held[:, 4:], v[:, 4:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_predicted_noise_is_stored_as_the_velocity_and_given_back_with_the_input_of_the_tick(
    dtype: torch.dtype,
) -> None:
    now, later = Parametrisation(0.6, 0.8), Parametrisation(0.8, 0.6)
    x, v = torch.randn(1, 4, 4, 4).to(dtype), torch.randn(1, 4, 4, 4).to(dtype)
    at, noise = call(hidden_states=x), 0.6 * v + 0.8 * x
    layout = Layout(at, noise, basis="velocity")
    (feature,) = layout.features(at.tensors, [noise], now)
    rounding = {"atol": 1e-6, "rtol": 1e-6} if dtype == torch.float32 else {"atol": 0.03, "rtol": 0.02}
    assert feature.dtype == dtype
    torch.testing.assert_close(feature, v, **rounding)
    moved = call(hidden_states=x + 1)
    (held,) = layout.predict(moved.tensors, Past([(feature,)], [1.0]), at=later)
    torch.testing.assert_close(held, 0.8 * v + 0.6 * (x + 1), **rounding)
    (velocity,) = layout.predict(moved.tensors, Past([(feature,)], [1.0]))
    assert torch.equal(velocity, feature)


def test_a_learned_variance_is_held_while_the_velocity_is_extrapolated() -> None:
    x, output = torch.randn(1, 4, 4, 4), torch.randn(1, 8, 4, 4)
    at = call(hidden_states=x)
    layout = Layout(at, output, basis="velocity")
    here = Parametrisation(0.6, 0.8)
    newest = layout.features(at.tensors, [output], here)
    older = layout.features(at.tensors, [torch.randn(1, 8, 4, 4)], here)
    (value,) = layout.predict(at.tensors, Past([newest, older], [2.0, -1.0], [1.0, 0.0]), at=here)
    line = 2 * newest[0][:, :4] - older[0][:, :4]
    torch.testing.assert_close(value[:, :4], 0.6 * line + 0.8 * x)
    assert torch.equal(value[:, 4:], output[:, 4:])


def test_two_streams_find_their_own_inputs() -> None:
    at = call(hidden_states=torch.randn(1, 6, 8), audio=torch.randn(1, 3, 8), text=torch.randn(1, 5, 8))
    layout = Layout(at, Pair(torch.randn(1, 6, 8), torch.randn(1, 3, 8)), basis="residual")
    assert layout.sources() == {"hidden_states", "audio"}


def test_an_argument_that_is_handed_on_is_not_stored() -> None:
    cache, x = torch.randn(2, 3), torch.randn(1, 4, 4)
    at = call(hidden_states=x, audio={"keys": cache})
    layout = Layout(at, (torch.randn(1, 4, 4), {"keys": cache}), basis="residual")
    now = call(hidden_states=x, audio={"keys": torch.zeros(2, 3)})
    assert len(layout.streams) == 1
    assert layout.join([x], now.tensors)[1]["keys"] is now.tensors["audio.keys"]


def test_list_valued_latents_are_streams_of_their_own() -> None:
    xs = [torch.randn(4, 1, 6, 6), torch.randn(4, 1, 8, 6)]
    layout = Layout(call(hidden_states=xs), [torch.randn_like(x) for x in xs], basis="residual")
    assert layout.sources() == {"hidden_states.0", "hidden_states.1"}


def test_what_is_stored_shares_no_memory_with_the_caller() -> None:
    x, v = torch.randn(1, 4, 4), torch.randn(1, 4, 4)
    at = call(hidden_states=x)
    for basis in get_args(Basis):
        layout = Layout(at, v.clone(), basis=basis)
        output = v.clone()
        past = Past([layout.features(at.tensors, [output])], [1.0])
        output.zero_()
        assert torch.equal(layout.predict(at.tensors, past)[0], v)
        layout.predict(at.tensors, past)[0].zero_()
        assert torch.equal(layout.predict(at.tensors, past)[0], v)


def test_a_layout_is_kept_for_calls_that_look_alike_only() -> None:
    x, v, handed_on = torch.randn(1, 4, 8), torch.randn(1, 4, 8), torch.zeros(2)
    layout = Layout(call(hidden_states=x, text=handed_on), (v, None, handed_on), basis="residual")
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
    layout = Layout(call(hidden_states=x), wrap(v), basis="residual")
    for other in ({"a": v}, {"b": v}, [v], [v, v], ((v,), 1), ((v,), 2), (v, 1)):
        alike = layout.pairs_if_fits(other, {"hidden_states": x})
        assert (alike is not None) == (str(other) == str(wrap(v)))
