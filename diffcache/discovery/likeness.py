"""Whether two blocks, and two calls of blocks, are alike: then they do the same, on other memory."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter, itemgetter, methodcaller
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from diffcache.discovery.storage_trace import Storage
from diffcache.hooks.class_swap import base_class
from diffcache.host.call import Call, version_of
from diffcache.host.structure import PLAIN, modules_inside

_BY_VALUE = (torch.dtype, torch.device, type, FunctionType, BuiltinFunctionType, Enum)
_OF_MODULES = frozenset(vars(nn.Module())) - {"training"}
_FORMS = type, attrgetter("shape"), methodcaller("stride"), attrgetter("dtype"), attrgetter("device")
"""What the form of a tensor consists of."""


class _Simple:
    """An object that holds nothing but its `__dict__`."""


class Opaque(Exception):
    """Something may hold what cannot be compared: a cache, a tensor, a hook, a replaced `forward`."""


@dataclass(frozen=True, slots=True)
class _ModuleForm:
    """Of one module: what tells where to look for the rest.

    Attributes:
        base: its class, not swapped.
        names: of all its attributes, in order.
        plain: takes the values of those attributes that not every module has and that have a single plain value.
        tuples: the names of attributes that are tuples of such values.
        others: the rest of those attributes, in a form that can be compared.
    """

    base: type
    names: list[str]
    plain: Callable[[dict[str, Any]], tuple[Any, ...]]
    tuples: list[str]
    others: list[tuple[str, Hashable]]

    @classmethod
    def of(cls, module: nn.Module) -> "_ModuleForm":
        """What a module is made of now.

        Raises:
            Opaque: it has forward hooks, or an attribute that is more than plain values.
        """
        own = vars(module)
        if own["_forward_hooks"] or own["_forward_pre_hooks"]:
            raise Opaque
        plain, tuples, others = list[str](), list[str](), list[tuple[str, Hashable]]()
        for name, value in own.items():
            if name in _OF_MODULES:
                continue
            if _is_plain(value):
                plain.append(name)
            elif type(value) is tuple and all(map(_is_plain, value)):
                tuples.append(name)
            else:
                others.append((name, _frozen(value)))
        # twice, because of a single name `itemgetter` would give no tuple
        return cls(base_class(type(module)), [*own], itemgetter("training", *plain), tuples, others)


class _Contents(NamedTuple):
    """Of all modules of a block, one after another. Lists are compared in no time, the first one first.

    Attributes:
        kinds: the types of these values.
        values: the plain ones.
        names: of parameters, buffers and modules inside.
        tensors: type, shape, strides, dtype and device of each parameter and buffer.
    """

    kinds: list[type]
    values: list[Any]
    names: list[str | None]
    tensors: list[list[Any]]


class BlockForm:
    """What a block is made of: blocks that fit it differ in nothing but their weights.

    Classes, plain attributes, and the shapes and types of parameters and buffers, for all modules inside.

    Args:
        block: the block as it is now.

    Raises:
        Opaque: a module has forward hooks, or an attribute that is more than plain values.
    """

    def __init__(self, block: nn.Module) -> None:
        self._forms = [*map(_ModuleForm.of, modules_inside(block))]
        self._contents = self._contents_of(block)

    def fits(self, block: nn.Module) -> bool:
        """Whether a block is made of the same now."""
        try:
            contents = self._contents_of(block)
        except Opaque:
            return False
        return contents is not None and contents == self._contents

    def _contents_of(self, block: nn.Module) -> _Contents | None:
        """What remains to be compared; None if a module has another class, other attributes or forward hooks.

        This runs for every module of a denoiser, and takes most of its time for memory that is in no cache.

        Raises:
            Opaque: a module has an attribute that is more than plain values.
        """
        values, names, held = list[Any](), list[str | None](), list[Tensor | None]()
        todo = [block]
        for form in self._forms:
            if not todo:
                return None
            module = todo.pop()
            own, kind = module.__dict__, type(module)
            if kind is not form.base and base_class(kind) is not form.base:
                return None
            if [*own] != form.names or own["_forward_hooks"] or own["_forward_pre_hooks"]:
                return None
            values += form.plain(own)
            for name in form.tuples:
                value = own[name]
                if type(value) is not tuple:
                    return None
                values += (len(value), *value)
            for name, frozen in form.others:
                if _frozen(own[name]) != frozen:
                    return None
            parameters, buffers, children = own["_parameters"], own["_buffers"], own["_modules"]
            if parameters:
                names += parameters
                held += parameters.values()
            names.append(None)
            if buffers:
                names += buffers
                held += buffers.values()
            names.append(None)
            if children:
                names += children
                inside = [child for child in children.values() if child is not None]
                if len(inside) < len(children):
                    values += [child is None for child in children.values()]
                todo += inside
            names.append(None)
        if todo:
            return None
        tensors = [tensor for tensor in held if tensor is not None]
        forms = [[tensor is None for tensor in held], *([*map(form, tensors)] for form in _FORMS)]
        return _Contents([*map(type, values)], values, names, forms)


def memory_of_block(block: nn.Module) -> list[Storage]:
    """Of its parameters and buffers, in the same order for all blocks of one form."""
    return [
        tensor.untyped_storage()._cdata
        for module in modules_inside(block)
        for held in (vars(module)["_parameters"], vars(module)["_buffers"])
        for tensor in held.values()
        if tensor is not None
    ]


def form_of_call(call: Call, memory: Iterable[Storage]) -> Hashable:
    """Forms and values of the arguments, and which of them share memory.

    A tensor of whole numbers is told by its memory: the forward may go by its content.

    Args:
        call: the call.
        memory: of each of its tensors.

    Raises:
        Opaque: an argument is more than tensors and plain values.
    """
    parts: list[Hashable] = []
    numbers: dict[int, int] = {}
    storages = iter(memory)
    for path, leaf in call.leaves.items():
        if isinstance(leaf, Tensor):
            storage = next(storages)
            parts += path, numbers.setdefault(storage, len(numbers)), *_form_of_tensor(leaf)
            if not leaf.is_floating_point():
                parts += storage, leaf.storage_offset(), version_of(leaf)
        else:
            parts += path, _frozen(leaf)
    return tuple(parts)


def _form_of_tensor(tensor: Tensor) -> tuple[Hashable, ...]:
    return type(tensor), tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _is_plain(value: Any) -> bool:
    """Whether a value tells all of itself by being equal to another one of its type."""
    return type(value) in PLAIN or isinstance(value, _BY_VALUE)


def _frozen(value: Any) -> Hashable:
    """A plain value, or a container or simple object of plain values, in a form that can be compared.

    Raises:
        Opaque: it is something else.
    """
    kind = type(value)
    if _is_plain(value):
        return kind, value
    if isinstance(value, (list, tuple, set, frozenset)):
        return kind, *map(_frozen, value)
    if isinstance(value, dict):
        return kind, *((_frozen(key), _frozen(item)) for key, item in value.items())
    if kind.__basicsize__ == _Simple.__basicsize__ and hasattr(value, "__dict__"):  # an attention processor
        return kind, _frozen(vars(value))
    raise Opaque
