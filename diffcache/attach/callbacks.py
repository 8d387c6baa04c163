"""A pipeline's callbacks run outside its scope: what they call is none of the run's business."""

import inspect
from collections.abc import Callable
from typing import Any

from diffcache.engine.scopes import entered


def arguments_of(
    forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """A pipeline call's arguments by name."""
    return {**dict(zip(inspect.signature(forward).parameters, args, strict=False)), **kwargs}


def hidden_from_callbacks(
    forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A call's arguments, with every callback among them made to see no scope: it may call the denoiser, or a pipeline."""
    names = list(inspect.signature(forward).parameters)
    for name, value in arguments_of(forward, args, kwargs).items():
        if name.startswith("callback") and callable(value):
            if name == "callback_on_step_end" and hasattr(value, "tensor_inputs"):
                kwargs = {**kwargs, "callback_on_step_end_tensor_inputs": value.tensor_inputs}
            if name in kwargs:
                kwargs = {**kwargs, name: _outside_scopes(value)}
            else:
                i = names.index(name)
                args = (*args[:i], _outside_scopes(value), *args[i + 1 :])
    return args, kwargs


def _outside_scopes(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with entered(None):
            return function(*args, **kwargs)

    return call
