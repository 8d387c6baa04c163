"""Callbacks, however they are passed, run where the pipeline's own run is not seen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from diffcache.host.callbacks import arguments_of, hidden_from_callbacks

seen: list[str] = []


@contextmanager
def hide() -> Iterator[None]:
    seen.append("hidden")
    yield
    seen.append("shown")


def forward(
    prompt: str,
    callback: Any = None,
    callback_on_step_end: Any = None,
    callback_on_step_end_tensor_inputs: Any = (),
) -> Any:
    for function in (callback, callback_on_step_end):
        if function is not None:
            seen.append(function(prompt))
    return callback_on_step_end_tensor_inputs


def call_back(prompt: str) -> str:
    return prompt


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (("picture", call_back), {}),
        (("picture",), {"callback": call_back}),
        ((), {"callback_on_step_end": call_back, "prompt": "picture"}),
    ],
    ids=["by position", "by name", "at the end of a step"],
)
def test_a_callback_runs_hidden(args: Any, kwargs: Any) -> None:
    seen.clear()
    args, kwargs = hidden_from_callbacks(forward, args, kwargs, hide)
    forward(*args, **kwargs)
    assert seen == ["hidden", "shown", "picture"]


def test_what_is_no_callback_stays_as_it_is() -> None:
    args, kwargs = ("picture", None), {"callback_on_step_end_tensor_inputs": ["latents"]}
    assert hidden_from_callbacks(forward, args, kwargs, hide) == (args, kwargs)
    assert arguments_of(forward, args, kwargs) == {"prompt": "picture", "callback": None, **kwargs}


def test_the_tensors_that_a_callback_object_asks_for_are_asked_for() -> None:
    class Asking:
        tensor_inputs = ("latents", "prompt_embeds")

        def __call__(self, prompt: str) -> str:
            return prompt

    args, kwargs = hidden_from_callbacks(forward, ("picture",), {"callback_on_step_end": Asking()}, hide)
    assert forward(*args, **kwargs) == Asking.tensor_inputs


def same(step: int, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return tensors


def others(step: int, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**tensors, "latents": tensors["latents"] + 1}


def written(step: int, tensors: dict[str, Tensor]) -> None:
    tensors["latents"].add_(1)


def other_prompt(step: int, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**tensors, "prompt_embeds": tensors["latents"] + 1}


def not_handed_back(step: int, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    tensors["latents"] = tensors["latents"].double()
    return {}


@pytest.mark.parametrize(
    ("callback", "number"), [(same, 0), (others, 1), (written, 1), (other_prompt, 0), (not_handed_back, 0)]
)
def test_latents_that_a_callback_replaces_are_told(callback: Any, number: int) -> None:
    def stepping(callback_on_step_end: Any) -> None:
        callback_on_step_end(0, {"latents": torch.zeros(1, 4)})

    told = list[bool]()
    args, kwargs = hidden_from_callbacks(
        stepping, (), {"callback_on_step_end": callback}, hide, lambda: told.append(True)
    )
    stepping(*args, **kwargs)
    assert len(told) == number


def test_replaced_latents_are_told_in_inference_mode_too() -> None:
    told = list[bool]()

    def stepping(callback_on_step_end: Any) -> None:
        callback_on_step_end(0, {"latents": torch.zeros(1, 4)})

    args, kwargs = hidden_from_callbacks(
        stepping, (), {"callback_on_step_end": others}, hide, lambda: told.append(True)
    )
    with torch.inference_mode():
        stepping(*args, **kwargs)
    assert told == [True]
