"""Whether two blocks, and two calls of blocks, are alike: then they do the same, on other memory."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import Enum
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from diffcache.discovery.storage_trace import Storage
from diffcache.hooks.class_swap import base_class
from diffcache.host.call import Call, version_of
from diffcache.host.structure import PLAIN, modules_inside

_BY_VALUE = (torch.dtype, torch.device, type, FunctionType, BuiltinFunctionType, Enum)
_OF_MODULES = frozenset(vars(nn.Module())) - {"training"}


class _Simple:
    """An object that holds nothing but its `__dict__`."""


class Opaque(Exception):
    """Something may hold what cannot be compared: a cache, a tensor, a hook, a replaced `forward`."""


@dataclass(frozen=True, slots=True)
class _ModuleForm:
    """Of one module.

    Attributes:
        kind: its class, swapped or not.
        names: of all its attributes, in order.
        plain: of those attributes that not every module has, the names of those with a single plain value.
        values, kinds: these values, and their types.
        others: the rest of those attributes, in a form that can be compared.
        memory: name and form of each parameter and buffer.
        children: the names of the modules inside it, each with whether it is None.
    """

    kind: type
    names: list[str]
    plain: list[str]
    values: list[Any]
    kinds: list[type]
    others: list[tuple[str, Hashable]]
    memory: list[Hashable]
    children: list[tuple[str, bool]]

    @classmethod
    def of(cls, module: nn.Module) -> "_ModuleForm":
        """What a module is made of now.

        Raises:
            Opaque: it has forward hooks, or an attribute that is more than plain values.
        """
        own = vars(module)
        if own["_forward_hooks"] or own["_forward_pre_hooks"]:
            raise Opaque
        plain, others = list[str](), list[tuple[str, Hashable]]()
        for name, value in own.items():
            if name in _OF_MODULES:
                continue
            if _is_plain(value):
                plain.append(name)
            else:
                others.append((name, _frozen(value)))
        values = [own[name] for name in plain]
        children = [(name, child is None) for name, child in own["_modules"].items()]
        return cls(type(module), [*own], plain, values, [*map(type, values)], others, _memory(own), children)

    def fits(self, module: nn.Module) -> bool:
        """Whether a module is made of the same now. This runs for every module of a denoiser.

        Raises:
            Opaque: it has an attribute that is more than plain values.
        """
        own, kind = module.__dict__, type(module)
        if kind is not self.kind and base_class(kind) is not base_class(self.kind):
            return False
        if [*own] != self.names or own["_forward_hooks"] or own["_forward_pre_hooks"]:
            return False
        values = [own[name] for name in self.plain]
        if [*map(type, values)] != self.kinds or values != self.values:
            return False
        for name, value in self.others:
            if _frozen(own[name]) != value:
                return False
        if (own["_parameters"] or own["_buffers"] or self.memory) and _memory(own) != self.memory:
            return False
        children = own["_modules"]
        if not (children or self.children):
            return True
        return [(name, child is None) for name, child in children.items()] == self.children


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

    def fits(self, block: nn.Module) -> bool:
        """Whether a block is made of the same now."""
        modules = modules_inside(block)
        try:
            return len(modules) == len(self._forms) and all(map(_ModuleForm.fits, self._forms, modules))
        except Opaque:
            return False


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


def _memory(own: dict[str, Any]) -> list[Hashable]:
    """Name and form of each parameter and buffer among a module's attributes, one after another."""
    parts: list[Any] = []
    for held in (own["_parameters"], own["_buffers"]):
        for name, tensor in held.items():
            if tensor is None:
                parts += (name, None)
            else:  # as `_form_of_tensor`, without a call
                parts += (name, type(tensor), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
    return parts


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
