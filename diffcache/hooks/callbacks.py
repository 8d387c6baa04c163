"""A pipeline's callbacks: what they call is no part of the pipeline's own run."""

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

Hide = Callable[[], AbstractContextManager[object]]
"""Makes a context in which a run is not seen."""


def arguments_of(
    forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """A pipeline call's arguments by name."""
    return {**dict(zip(inspect.signature(forward).parameters, args, strict=False)), **kwargs}


def hidden_from_callbacks(
    forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], hide: Hide
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A call's arguments, in which every callback runs inside `hide()`: it may call the model, or a pipeline."""
    names = list(inspect.signature(forward).parameters)
    for name, value in arguments_of(forward, args, kwargs).items():
        if name.startswith("callback") and callable(value):
            if name == "callback_on_step_end" and hasattr(value, "tensor_inputs"):
                kwargs = {**kwargs, "callback_on_step_end_tensor_inputs": value.tensor_inputs}
            if name in kwargs:
                kwargs = {**kwargs, name: _inside(hide, value)}
            else:
                i = names.index(name)
                args = (*args[:i], _inside(hide, value), *args[i + 1 :])
    return args, kwargs


def _inside(hide: Hide, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with hide():
            return function(*args, **kwargs)

    return call
