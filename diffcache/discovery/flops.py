"""Floating-point operations: matrix products, convolutions and attention; all else counts nothing."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

_INNER_BIAS = 14
"""Place of the inner bias among the arguments after the source, of torch's fused encoder layer."""


class FlopCount(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds them up while it is entered.

    Attributes:
        total: so far.
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
    """Of one operation, as a dispatch mode sees it: a multiplication with its addition is two."""
    if not isinstance(func, OpOverload):
        return 0  # a higher-order operator (flex attention): its parts are not counted
    if func._schema.name.startswith("aten::_scaled_dot_product"):  # the CPU's is not in the registry
        return int(sdpa_flop_count(args[0].shape, args[1].shape, args[2].shape))  # type: ignore[no-untyped-call]
    if func._schema.name in _FUSED:
        return _FUSED[func._schema.name](*args)
    count = flop_registry.get(func._overloadpacket)
    return 0 if count is None else int(count(*args, **kwargs, out_val=output))


def _attention_flops(query: Tensor, key: Tensor, *_: Any) -> int:
    """Of torch's fused `nn.MultiheadAttention` on [n, tokens, width]: four projections, and two products with the keys."""
    tokens, width = query.numel() // query.shape[-1], query.shape[-1]
    return int(2 * tokens * width * (4 * width + 2 * key.shape[-2]))


def _encoder_layer_flops(source: Tensor, *others: Any) -> int:
    """Of torch's fused `nn.TransformerEncoderLayer`: the attention, and two projections to and from the inner width."""
    inner = others[_INNER_BIAS].numel()
    return _attention_flops(source, source) + int(4 * source.numel() * inner)


_FUSED: dict[str, Callable[..., int]] = {
    "aten::_native_multi_head_attention": _attention_flops,
    "aten::_transformer_encoder_layer_fwd": _encoder_layer_flops,
}
