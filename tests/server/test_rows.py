"""Which arguments have rows, and how calls are taken apart and put together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.shared_loop import Waves
from torch import Tensor, nn

from diffcache import serving
from diffcache.schedulers.errors import TargetError
from diffcache.server.rows import IndivisibleError, Splitter, assembled, consecutive, divided


def parts_of(arguments: Any, total: int, counts: list[int], **how: Any) -> list[Any]:
    form = Splitter(how.pop("shared", None)).form(0, arguments, total, **how)
    return form.parts(arguments, consecutive(counts))


def test_tensors_with_a_row_for_each_sample_are_split_and_others_shared() -> None:
    x, scalar, table = torch.randn(3, 8, 2), torch.tensor(7.0), torch.randn(8, 5)
    kwargs = {
        "times": torch.arange(3),
        "cond": {"pooled": (torch.randn(3, 4), table)},
        "flag": True,
        "none": None,
    }
    first, second = parts_of(((x, scalar), kwargs), 3, [1, 2])
    assert torch.equal(first[0][0], x[:1])
    assert torch.equal(second[0][0], x[1:])
    assert first[0][1] is second[0][1] is scalar
    assert second[1]["times"].tolist() == [1, 2]
    assert second[1]["cond"]["pooled"][0].shape == (2, 4)
    assert second[1]["cond"]["pooled"][1] is table
    assert second[1]["flag"] is True
    assert second[1]["none"] is None


def test_one_row_that_all_share() -> None:
    x, one = torch.randn(2, 3, 4), torch.randn(1, 6)
    assert parts_of(((x, one), {}), 2, [1, 1])[1][0][1] is one


def test_lists_of_samples_are_split_by_items() -> None:
    samples = [torch.randn(1, size, 4) for size in (2, 3, 5)]
    first, second = parts_of(((samples, torch.arange(3)), {}), 3, [2, 1], listed=True)
    assert [each.shape[1] for each in first[0][0]] == [2, 3]
    assert second[0][0][0] is samples[2]
    assert second[0][1].tolist() == [2]


def test_as_many_rows_as_tokens_are_told_by_calls_before() -> None:
    splitter = Splitter()

    def form(rows: int) -> list[bool]:
        arguments = (torch.randn(rows, 4, 2), torch.randn(4, 3), torch.randn(rows, 6)), {}
        return list(splitter.form(0, arguments, rows).has_rows)

    with pytest.raises(IndivisibleError, match="shared="):
        form(4)
    assert form(2) == [True, False, True]
    assert form(4) == [True, False, True]


def test_names_of_shared_arguments_can_be_given() -> None:
    x, ids = torch.randn(4, 4, 2), torch.randn(4, 3)
    named = [("x", x), ("ids", ids)]
    form = Splitter(frozenset({"ids"})).form(0, ((x, ids), {}), 4, named=named)
    assert list(form.has_rows) == [True, False]


def test_frames_folded_into_the_batch_are_refused() -> None:
    x, folded = torch.randn(2, 3, 4), torch.randn(6, 3, 4)
    with pytest.raises(IndivisibleError, match=r"context of shape \(6, 3, 4\)"):
        Splitter().form(0, ((x, folded), {}), 2, named=[("x", x), ("context", folded)])


def test_outputs_are_taken_apart_and_put_together() -> None:
    arguments = (torch.randn(3, 2, 2), torch.randn(1, 2)), {}
    form = Splitter().form(0, arguments, 3)
    rows = [[(0, 1), (2, 3)], [(1, 2)]]
    parts = form.parts(arguments, rows)
    output = {"sample": torch.randn(3, 5), "kept": (arguments[0][1], "text")}
    leaves = [form.flatten(each)[0] for each in (arguments, *parts)]
    first, second = divided(output, form, rows, leaves)
    assert torch.equal(first["sample"], output["sample"][[0, 2]])
    assert second["kept"][0] is arguments[0][1]
    again = assembled([first, second], form, rows)
    assert torch.equal(again["sample"], output["sample"])
    assert again["kept"][1] == "text"


def test_an_output_without_rows_is_refused() -> None:
    class Folding(nn.Module):
        def forward(self, sample: Tensor, timestep: Tensor) -> Tensor:
            return sample.flatten(0, 1)

    denoiser = Folding().eval()
    with serving(denoiser) as server, torch.no_grad():
        a, b = server.request(2), server.request(2)
        with server.batch([(a, 0), (b, 0)]), pytest.raises(TargetError, match="not a row for each"):
            denoiser(torch.randn(2, 3, 4), torch.zeros(2))


def test_a_denoiser_that_writes_into_its_arguments_is_refused() -> None:
    class Writing(nn.Module):
        def forward(self, sample: Tensor, timestep: Tensor) -> Tensor:
            return sample.add_(1)

    denoiser = Writing().eval()
    with serving(denoiser) as server, torch.no_grad():
        a, b = server.request(2), server.request(2)
        with server.batch([(a, 0), (b, 0)]), pytest.raises(TargetError, match="writes into its arguments"):
            denoiser(torch.randn(2, 3, 4), torch.zeros(2))


def test_arguments_of_all_kinds_in_a_served_call() -> None:
    denoiser = Waves()
    x, times = torch.randn(3, 4, 16), torch.tensor([900.0, 500.0, 100.0])
    extra, ids = {"pooled": (torch.randn(3, 2), torch.randn(7))}, torch.randn(4, 3)
    with serving(denoiser) as server, torch.no_grad():
        requests = [server.request(4, config="uniform", interval=2, tail_steps=0) for _ in range(2)]
        outputs = []
        for step in (0, 1):
            with server.batch([(request, step) for request in requests], [1, 2]):
                outputs.append(denoiser(x, times, torch.ones(3), extra=extra, ids=ids)[0])
    assert torch.equal(outputs[0], denoiser(x, times, torch.ones(3), extra=extra, ids=ids)[0])
    assert torch.equal(outputs[1], outputs[0])  # held, on the same input


def test_a_scalar_time_is_shared() -> None:
    denoiser, x = Waves(), torch.randn(2, 4, 16)
    with serving(denoiser) as server, torch.no_grad():
        a, b = server.request(4), server.request(4, config="uniform")
        with server.batch([(a, 0), (b, 0)]):
            shared = denoiser(x, torch.tensor(500.0))[0]
    assert torch.equal(shared, denoiser(x, torch.tensor(500.0))[0])


def test_nothing_is_shared_where_that_is_said() -> None:
    """Sixteen rows and sixteen tokens: the shape of pooled embeddings could be that of positions."""
    arguments = (torch.zeros(16, 16, 8), torch.zeros(16, 64))
    with pytest.raises(IndivisibleError, match=r"shared=\(\)"):
        Splitter().form(0, arguments, 16)
    assert Splitter(frozenset()).form(0, arguments, 16).has_rows == [True, True]
