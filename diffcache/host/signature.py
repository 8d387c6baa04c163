"""Signature: the arguments of a module's call by the names of its parameters."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from torch import Tensor, nn

from diffcache.hooks.class_swap import base_class

Pick = Callable[[tuple[Any, ...], dict[str, Any]], dict[str, Any]]
"""Takes some arguments out of `args` and `kwargs`, by path; None for one that the call does not have."""


class Signature:
    """The parameters of a class's `forward`.

    Args:
        cls: the class.
    """

    def __init__(self, cls: type) -> None:
        self._signature = inspect.signature(cls.forward)  # type: ignore[attr-defined]
        parameters = list(self._signature.parameters.values())[1:]
        self._takes_more = bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD
        if self._takes_more:
            parameters.pop()
        plain = all(parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for parameter in parameters)
        self._names = tuple(parameter.name for parameter in parameters) if plain else None
        needed = (parameter.name for parameter in parameters if parameter.default is parameter.empty)
        self._needed = frozenset(needed)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any]:
        """Arguments by parameter name, in the parameters' order, as `inspect` binds them.

        What `*args` takes is called "argument 0", "argument 1", ..., by its place, and so is everything that does not fit the signature. What
        `**kwargs` takes has its own name. It is several times faster than `inspect` where every parameter can be given by position and by name.
        """
        names = self._names
        if names is None or len(args) > len(names):
            return self._inspected(args, kwargs)
        given = dict(zip(names, args, strict=False))
        if not given.keys().isdisjoint(kwargs) or not self._needed <= given.keys() | kwargs.keys():
            return self._inspected(args, kwargs)
        for name in names[len(args) :]:
            if name in kwargs:
                given[name] = kwargs[name]
        if len(given) == len(args) + len(kwargs):
            return given
        if not self._takes_more:
            return self._inspected(args, kwargs)
        given.update((name, value) for name, value in kwargs.items() if name not in given)
        return given

    def picker(self, paths: Iterable[str]) -> Pick:
        """A function that takes the arguments at these paths out of calls.

        It binds all arguments only where a path leads into a list or dict.
        """
        paths, names = list(paths), self._names or ()
        if any(path not in names for path in paths):

            def pick_inside(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
                leaves = flattened(self.bind(args, kwargs))
                return {path: leaves.get(path) for path in paths}

            return pick_inside
        indices = [(path, names.index(path)) for path in paths]

        def pick(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
            taken = {}
            for path, index in indices:
                taken[path] = args[index] if index < len(args) else kwargs.get(path)
            return taken

        return pick

    def _inspected(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any]:
        try:
            bound = self._signature.bind(None, *args, **kwargs).arguments
        except (TypeError, ValueError):  # the module itself refuses a wrong call; a wrapper may take anything
            return {**{f"argument {i}": value for i, value in enumerate(args)}, **kwargs}
        found: dict[str, Any] = {}
        for name, value in [*bound.items()][1:]:
            kind = self._signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                found.update(value)
            elif kind is inspect.Parameter.VAR_POSITIONAL:
                found.update((f"argument {len(args) - len(value) + i}", item) for i, item in enumerate(value))
            else:
                found[name] = value
        return found


def signature_of(module: nn.Module) -> Signature:
    """The signature of a module's class, swapped or not."""
    return _signature(base_class(type(module)))


@cache
def _signature(cls: type) -> Signature:
    return Signature(cls)


def flattened(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Every tensor and plain value among the arguments, by its path ("added_cond_kwargs.text_embeds")."""
    leaves: dict[str, Any] = {}
    for name, value in arguments.items():
        if isinstance(value, Tensor) or not isinstance(value, (Mapping, list, tuple)):
            leaves[name] = value
        else:
            _add_leaves(leaves, name, value)
    return leaves


def _add_leaves(leaves: dict[str, Any], path: str, value: Any) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            _add_leaves(leaves, f"{path}.{key}", item)
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            _add_leaves(leaves, f"{path}.{i}", item)
    else:
        leaves[path] = value
