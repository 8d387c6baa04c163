"""Whether two blocks, and two calls of blocks, are alike: then they do the same, on other memory."""

from collections.abc import Hashable, Iterator
from enum import Enum
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from diffcache.discovery.storage_trace import Trace
from diffcache.hooks.class_swap import base_class
from diffcache.host.call import Call, version_of
from diffcache.host.structure import PLAIN, modules_inside

_BY_VALUE = (torch.dtype, torch.device, type, FunctionType, BuiltinFunctionType, Enum)
_OF_MODULES = frozenset(vars(nn.Module())) - {"training"}


class _Simple:
    """An object that holds nothing but its `__dict__`."""


class Opaque(Exception):
    """Something may hold what cannot be compared: a cache, a tensor, a hook, a replaced `forward`."""


def form_of_block(block: nn.Module) -> Hashable:
    """What a block is made of now: equal for blocks that differ in nothing but their weights.

    Classes, plain attributes, and the shapes and types of parameters and buffers, for all modules inside.

    Raises:
        Opaque: a module has forward hooks, or an attribute that is more than plain values.
    """
    parts: list[Hashable] = []
    for module in modules_inside(block):
        attributes = vars(module)
        if attributes["_forward_hooks"] or attributes["_forward_pre_hooks"]:
            raise Opaque
        parts += base_class(type(module)), *attributes["_modules"]
        for name in sorted(attributes.keys() - _OF_MODULES):
            parts += name, _frozen(attributes[name])
        for memory in (attributes["_parameters"], attributes["_buffers"]):
            for name, tensor in memory.items():
                parts += name, None if tensor is None else _form_of_tensor(tensor)
    return tuple(parts)


def memory_of_block(block: nn.Module) -> Iterator[Tensor]:
    """Its parameters and buffers, in the same order for all blocks of one form."""
    for module in modules_inside(block):
        for memory in (vars(module)["_parameters"], vars(module)["_buffers"]):
            yield from (tensor for tensor in memory.values() if tensor is not None)


def form_of_call(call: Call, trace: Trace) -> Hashable:
    """Forms and values of the arguments, which tensors evolve, and which of them share memory.

    A tensor of whole numbers is told by its memory: the forward may go by its content.

    Raises:
        Opaque: an argument is more than tensors and plain values.
    """
    parts: list[Hashable] = []
    numbers: dict[int, int] = {}
    for path, leaf in call.leaves.items():
        if isinstance(leaf, Tensor):
            number = numbers.setdefault(trace.storage(leaf), len(numbers))
            parts += path, _form_of_tensor(leaf), trace.evolves([leaf]), number
            if not leaf.is_floating_point():
                parts += trace.storage(leaf), leaf.storage_offset(), version_of(leaf)
        else:
            parts += path, _frozen(leaf)
    return tuple(parts)


def _form_of_tensor(tensor: Tensor) -> Hashable:
    return type(tensor), tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _frozen(value: Any) -> Hashable:
    """A plain value, or a container or simple object of plain values, in a form that can be compared.

    Raises:
        Opaque: it is something else.
    """
    kind = type(value)
    if kind in PLAIN or isinstance(value, _BY_VALUE):
        return kind, value
    if isinstance(value, (list, tuple, set, frozenset)):
        return kind, *map(_frozen, value)
    if isinstance(value, dict):
        return kind, *((_frozen(key), _frozen(item)) for key, item in value.items())
    if kind.__basicsize__ == _Simple.__basicsize__ and hasattr(value, "__dict__"):  # an attention processor
        return kind, _frozen(vars(value))
    raise Opaque
