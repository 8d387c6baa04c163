"""A pipeline's callbacks: what they call is no part of the pipeline's own run."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from diffcache.host.call import version_of

LATENTS = "latents"
"""The name under which pipelines hand a callback the samples, and take others from it."""

Hide = Callable[[], AbstractContextManager[object]]
"""Makes a context in which a run is not seen."""


def arguments_of(
    forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """A pipeline call's arguments by name."""
    return {**dict(zip(inspect.signature(forward).parameters, args, strict=False)), **kwargs}


def hidden_from_callbacks(
    forward: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    hide: Hide,
    replaced: Callable[[], None] = lambda: None,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A call's arguments, in which every callback runs inside `hide()`: it may call the model, or a pipeline.

    Args:
        forward: what is called.
        args, kwargs: its arguments.
        hide: see above.
        replaced: is called when a callback has replaced the latents or written to them.
    """
    names = list(inspect.signature(forward).parameters)
    for name, value in arguments_of(forward, args, kwargs).items():
        if name.startswith("callback") and callable(value):
            if name == "callback_on_step_end" and hasattr(value, "tensor_inputs"):
                kwargs = {**kwargs, "callback_on_step_end_tensor_inputs": value.tensor_inputs}
            if name in kwargs:
                kwargs = {**kwargs, name: _inside(hide, value, replaced)}
            else:
                i = names.index(name)
                args = (*args[:i], _inside(hide, value, replaced), *args[i + 1 :])
    return args, kwargs


def _inside(hide: Hide, function: Callable[..., Any], replaced: Callable[[], None]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        given = [(tensor, version_of(tensor)) for tensor in _latents([*args, *kwargs.values()])]
        with hide():
            found = function(*args, **kwargs)
        is_written = any(version_of(tensor) != version for tensor, version in given)
        if is_written or any(all(other is not tensor for tensor, _ in given) for other in _latents([found])):
            replaced()
        return found

    return call


def _latents(values: Iterable[Any]) -> Iterator[Tensor]:
    """The samples among a callback's arguments or what it returns: by themselves, or by their name in a dict."""
    for value in values:
        found = value.get(LATENTS) if isinstance(value, Mapping) else value
        if isinstance(found, Tensor) and found.ndim > 1:
            yield found
