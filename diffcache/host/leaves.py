"""The leaves of what a module is given or returns."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves


def leaves_of(value: Any) -> Sequence[Any]:
    """All leaves, as `tree_leaves` gives them. Nearly every value is a tensor or some in a tuple, which takes no search."""
    if isinstance(value, Tensor) or value is None:
        return (value,)
    is_flat = type(value) in (tuple, list) and all(isinstance(leaf, Tensor) for leaf in value)
    return value if is_flat else tree_leaves(value)


def tensors_of(value: Any) -> Sequence[Tensor]:
    """The tensors among the leaves."""
    if isinstance(value, Tensor):
        return (value,)
    return [leaf for leaf in leaves_of(value) if isinstance(leaf, Tensor)]
