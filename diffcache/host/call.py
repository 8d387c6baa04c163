"""One call of a module: its arguments by name, and what is needed of them to recognise and to split it."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree


class Call:
    """The arguments of one call, flattened.

    Attributes:
        leaves: every tensor and plain value by its path ("added_cond_kwargs.text_embeds"), in signature order.
        latent: path of the evolving sample: the first floating tensor, or the list that holds the first ones.
        latents: its tensors.
        batch: number of samples: the latents' first dimension, or their number where they come as a list.
    """

    def __init__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._bind(type(module), args, kwargs)

    def mapped(self, function: Callable[[Tensor], Tensor]) -> "Call":
        """The same call with `function` of every tensor."""
        args, kwargs = pytree.tree_map_only(Tensor, function, (self.args, self.kwargs))
        call = Call.__new__(Call)
        call._bind(self._cls, args, kwargs)
        return call

    def _bind(self, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args, self.kwargs, self._cls = args, kwargs, cls
        arguments = _bound(cls, args, kwargs)
        self.leaves = _flat(arguments)
        self.tensors = {path: leaf for path, leaf in self.leaves.items() if isinstance(leaf, Tensor)}
        self.latent, self.latents = _latents(arguments)
        self._nested = self.leaves.keys() != arguments.keys()  # lists and dicts among them
        in_list = isinstance(arguments.get(self.latent), (list, tuple))
        self.batch = len(self.latents) if in_list else self.latents[0].shape[0] if self.latents else 1
        self.batched = not in_list

    def fingerprint(self) -> tuple[Any, ...]:
        """Shapes, dtypes, devices and which arguments are present: a change of these empties the store."""
        return tuple(
            (path, leaf.shape, leaf.dtype, leaf.device) if isinstance(leaf, Tensor) else (path, leaf is None)
            for path, leaf in self.leaves.items()
        )

    def state(self) -> dict[str, Any]:
        """Identity and version of every tensor among the arguments now: it differs once one has been written to."""
        return {path: (id(tensor), version_of(tensor)) for path, tensor in self._tensors_now().items()}

    def refilled(self) -> bool:
        """Whether the lists and dicts among the arguments hold other tensors now than when the call was made."""
        now = self._tensors_now()
        return now.keys() != self.tensors.keys() or any(now[p] is not t for p, t in self.tensors.items())

    def _tensors_now(self) -> dict[str, Tensor]:
        if not self._nested:
            return self.tensors
        leaves = _flat(_bound(self._cls, self.args, self.kwargs))
        return {path: leaf for path, leaf in leaves.items() if isinstance(leaf, Tensor)}

    def picker(self, paths: Iterable[str]) -> "Picker":
        """What takes the tensors at these paths out of later calls."""
        return Picker(self._cls, paths)

    def is_latent(self, path: str) -> bool:
        """Whether the tensor at `path` belongs to the evolving sample."""
        return path == self.latent or path.startswith(f"{self.latent}.")

    def divisible(self) -> bool:
        """Whether it is plain from the shapes which arguments have one row for each sample.

        It is not where the latents come as a list, where an argument's rows are neither one nor as many as samples
        (frames folded into the batch), or where as many samples as tokens make the two look alike.
        """
        others = [t for path, t in self.tensors.items() if not self.is_latent(path)]
        features = [t for t in others if t.ndim >= 3]
        as_many_tokens = self.batch > 1 and any(t.shape[1] == self.batch for t in features)
        unclear = as_many_tokens and any(t.ndim == 2 and t.shape[0] == self.batch for t in others)
        return self.batched and not unclear and all(t.shape[0] in (1, self.batch) for t in features)

    def rows(self, rows: list[int]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same arguments for some of the samples: tensors whose first dimension is the batch are cut."""
        args, kwargs = _take_rows((self.args, self.kwargs), rows, self.batch)
        return args, kwargs


class Picker:
    """Takes some tensors out of the calls of one class of modules; binds all arguments only if one lies inside another.

    Args:
        cls: the class.
        paths: of the tensors, as in `Call.leaves`.
    """

    def __init__(self, cls: type, paths: Iterable[str]) -> None:
        names = _names(cls)
        known = () if names is None else names.all
        self._cls = cls
        self._places = {path: known.index(path) if path in known else -1 for path in paths}
        self._binds = -1 in self._places.values()

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """By path; None for what a call does not have."""
        if self._binds:
            leaves = _flat(_bound(self._cls, args, kwargs))
            return {path: leaves.get(path) for path in self._places}
        taken = {}
        for path, place in self._places.items():  # no comprehension: called at every place
            taken[path] = args[place] if place < len(args) else kwargs.get(path)
        return taken


@cache
def _signature(cls: type) -> inspect.Signature:
    return inspect.signature(cls.forward)  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class _Names:
    """A forward's parameters in order, those that must be given, and the one that takes whatever else is (`**kwargs`)."""

    all: tuple[str, ...]
    needed: frozenset[str]
    rest: str | None


@cache
def _names(cls: type) -> _Names | None:
    """None where some can be given by position only or by name only, or there is an `*args`."""
    parameters = list(_signature(cls).parameters.values())[1:]
    rest = (
        parameters.pop().name if parameters and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD else None
    )
    if any(parameter.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD for parameter in parameters):
        return None
    needed = (parameter.name for parameter in parameters if parameter.default is parameter.empty)
    return _Names(tuple(parameter.name for parameter in parameters), frozenset(needed), rest)


def _bound_fast(names: _Names, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """As `inspect` binds them, several times faster; None where they do not fit."""
    given = dict(zip(names.all, args, strict=False))
    if (
        len(given) < len(args)
        or given.keys() & kwargs.keys()
        or not names.needed <= given.keys() | kwargs.keys()
    ):
        return None
    given |= {name: kwargs[name] for name in names.all[len(args) :] if name in kwargs}
    if len(given) == len(args) + len(kwargs):
        return given
    if names.rest is not None:
        given[names.rest] = {name: value for name, value in kwargs.items() if name not in given}
        return given
    return None


def _bound(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any]:
    """Arguments by parameter name, in the parameters' order; by position where the class does not say."""
    names = _names(cls)
    given = None if names is None else _bound_fast(names, args, kwargs)
    if given is not None:
        return given
    try:
        bound = _signature(cls).bind(None, *args, **kwargs).arguments
    except (TypeError, ValueError):  # a wrong call is the module's own to refuse; a wrapper may take anything
        return {**{f"argument {i}": value for i, value in enumerate(args)}, **kwargs}
    return {name: value for i, (name, value) in enumerate(bound.items()) if i > 0}


def _flat(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Every leaf by its path."""
    leaves: dict[str, Any] = {}
    for name, value in arguments.items():
        if isinstance(value, Tensor):  # most are: the way through generators takes ten times as long
            leaves[name] = value
        else:
            leaves.update(_leaves(name, value))
    return leaves


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(f"{path}.{key}", item)
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _leaves(f"{path}.{i}", item)
    else:
        yield path, value


def _latents(arguments: Mapping[str, Any]) -> tuple[str, list[Tensor]]:
    for name, value in arguments.items():
        tensors = [value] if isinstance(value, Tensor) else value
        if isinstance(tensors, (list, tuple)) and tensors and all(_is_sample(tensor) for tensor in tensors):
            return name, list(tensors)
    return "", []


def _is_sample(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim >= 2


def version_of(tensor: Tensor) -> int | None:
    """Counts in-place changes; inference tensors do not count theirs."""
    return None if tensor.is_inference() else tensor._version


def _take_rows(value: Any, rows: list[int], batch: int) -> Any:
    if isinstance(value, Tensor):
        if value.ndim == 0 or value.shape[0] != batch:
            return value
        return value.index_select(0, torch.tensor(rows, device=value.device))
    if isinstance(value, dict):
        return {key: _take_rows(item, rows, batch) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_take_rows(item, rows, batch) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value
