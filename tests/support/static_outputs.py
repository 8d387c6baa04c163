"""Modules that write what they return to the same memory at every call, as CUDA graphs do (`mode="reduce-overhead"`).

They look compiled, because that is how such modules are told: the engine cannot see what a compiled module writes to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes


class Pool:
    """Memory in which outputs lie.

    Args:
        slots: how many memories there are. Modules take them by turns, and so overwrite what others have returned. None:
            each module has its own.
    """

    def __init__(self, slots: int | None = None) -> None:
        self._slots = slots
        self._shared: dict[Any, Tensor] = {}

    def tensor(self, module: int, leaf: int, like: Tensor) -> Tensor:
        """The tensor in which a module returns a leaf of its output: with two slots of two modules the same memory."""
        slot = module if self._slots is None else module % self._slots
        key = slot, leaf, like.dtype
        size = like.numel() * like.element_size()
        if key not in self._shared or self._shared[key].numel() < size:
            self._shared[key] = torch.empty(4 * size, dtype=torch.uint8)
        memory = torch.from_numpy(self._shared[key].numpy())  # another storage in the same memory
        return memory[:size].view(like.dtype).view(like.shape)


class StaticOutputs:
    """The compiled call of a module: it runs the module unseen, and returns the same tensors at every call.

    Args:
        plain: the module's own call.
        place: makes the tensor for a leaf of the output, by index.
    """

    def __init__(self, plain: Callable[..., Any], place: Callable[[int, Tensor], Tensor]) -> None:
        self._plain, self._place = plain, place
        self._made: dict[Any, Tensor] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            leaves, spec = pytree.tree_flatten(self._plain(*args, **kwargs))
            given = {id(leaf) for leaf in pytree.tree_leaves((args, kwargs))}
            own = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and id(leaf) not in given]
            for i in own:  # all have been computed before the first is written
                key = i, leaves[i].shape, leaves[i].dtype
                if key not in self._made:
                    self._made[key] = self._place(i, leaves[i])
                self._made[key].data.copy_(leaves[i])  # `data`: no version counts it
                leaves[i] = self._made[key]
            return pytree.tree_unflatten(leaves, spec)


def with_static_outputs(modules: Sequence[nn.Module], slots: int | None = None) -> None:
    """Makes these modules, in the order in which they are called, return the same memory at every call."""
    pool = Pool(slots)
    for index, module in enumerate(modules):

        def place(leaf: int, like: Tensor, index: int = index) -> Tensor:
            return pool.tensor(index, leaf, like)

        module._compiled_call_impl = StaticOutputs(module._call_impl, place)  # type: ignore[assignment]
