"""Counts floating-point operations: those of matrix products, convolutions and attention; all others count as zero."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

_INNER_BIAS = 14
"""Index of the feed-forward's inner bias among the arguments of torch's fused encoder layer, the source not counted."""


class FlopCount(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the floating-point operations that run while it is entered.

    Attributes:
        total: the count so far.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        self.total += flops_of(func, args, kwargs, output)
        return output


def flops_of(func: Any, args: Any, kwargs: Mapping[str, Any], output: Any) -> int:
    """The floating-point operations of one call in a dispatch mode; a multiplication and its addition count as two."""
    if not isinstance(func, OpOverload):
        return 0  # a higher-order operator (flex attention): its parts are not counted
    if func._schema.name.startswith("aten::_scaled_dot_product"):  # the CPU's is not in the registry
        return int(sdpa_flop_count(args[0].shape, args[1].shape, args[2].shape))  # type: ignore[no-untyped-call]
    if func._schema.name in _OWN:
        return _OWN[func._schema.name](*args)
    count = flop_registry.get(func._overloadpacket)
    if count is None:
        return 0
    raw = getattr(count, "__wrapped__", None)
    if raw is None:
        return int(count(*args, **kwargs, out_val=output))
    shapes = map(_shape, args)  # torch flattens all arguments for that, which takes ten times as long
    others = {name: _shape(value) for name, value in kwargs.items()}
    return int(raw(*shapes, **others, out_shape=_shape(output)))


def _shape(value: Any) -> Any:
    """A tensor's shape, those of a tuple's or list's tensors, and any other value itself."""
    if isinstance(value, Tensor):
        return value.shape
    return type(value)(map(_shape, value)) if type(value) in (tuple, list) else value


def may_have_flops(func: OpOverload) -> bool:
    """Whether `flops_of` a call of this operator may be more than zero."""
    name = func._schema.name
    own = name in _OWN or name.startswith("aten::_scaled_dot_product")
    return own or func._overloadpacket in flop_registry


def _attention_flops(query: Tensor, key: Tensor, *_: Any) -> int:
    """torch's fused `nn.MultiheadAttention` on [n, tokens, width]: four projections, two products with the keys."""
    tokens, width = query.numel() // query.shape[-1], query.shape[-1]
    return int(2 * tokens * width * (4 * width + 2 * key.shape[-2]))


def _encoder_layer_flops(source: Tensor, *others: Any) -> int:
    """torch's fused `nn.TransformerEncoderLayer`: the attention, and projections to the inner width and back."""
    inner = others[_INNER_BIAS].numel()
    return _attention_flops(source, source) + int(4 * source.numel() * inner)


def _product_flops(first: Tensor, other: Tensor, *_: Any) -> int:
    """[..., m, k] times [..., k, n]. torch's formula flattens all arguments, which takes ten times as long."""
    return 2 * first.numel() * other.shape[-1]


def _added_product_flops(_: Tensor, first: Tensor, other: Tensor, *__: Any) -> int:
    return _product_flops(first, other)


_OWN: dict[str, Callable[..., int]] = {
    "aten::mm": _product_flops,
    "aten::bmm": _product_flops,
    "aten::addmm": _added_product_flops,
    "aten::baddbmm": _added_product_flops,
    "aten::_native_multi_head_attention": _attention_flops,
    "aten::_transformer_encoder_layer_fwd": _encoder_layer_flops,
}
