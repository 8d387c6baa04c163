"""An affine repair of a layer's output becomes part of its weights, so that it costs nothing at run time."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from diffcache.host.weight_formats import is_quantised
from diffcache.prediction.correctors import Repair

Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d


def can_fold(layer: nn.Module) -> bool:
    """Whether a gain and a shift for each output channel can become part of a layer's weights."""
    if not isinstance(layer, Layer) or layer.bias is None:
        return False
    if not is_quantised(layer.weight):
        return True
    scale = getattr(layer.weight, "scale", None)
    return isinstance(scale, Tensor) and scale.ndim == 2 and len(scale) == len(layer.bias)


def fold(layer: Layer, repair: Repair) -> Callable[[], None]:
    """Makes a layer return gain * y + shift where it returned y = W x + b: W becomes gain * W, b gain * b + shift.

    Of quantised weights the scales become gain * scale, and the integers stay as they are. (CacheQuant's reference adds b
    instead of gain * b, arXiv 2503.01323.)

    Args:
        layer: one that `can_fold`.
        repair: gain and shift, [output channels].

    Returns:
        What undoes it, to the bit.
    """
    weight: Any = layer.weight
    bias: Any = layer.bias
    gain, shift = (t.to(bias.device) for t in repair)
    scale = weight.scale if is_quantised(weight) else None
    if scale is not None:
        weight.scale = (gain.unsqueeze(1) * scale.float()).to(scale.dtype)
    else:
        rows = gain.reshape(-1, *[1] * (weight.ndim - 1))
        layer.weight = nn.Parameter((rows * weight.float()).to(weight.dtype), weight.requires_grad)
    layer.bias = nn.Parameter((gain * bias.float() + shift).to(bias.dtype), bias.requires_grad)

    def undo() -> None:
        if scale is not None:
            weight.scale = scale
        layer.weight, layer.bias = weight, bias

    return undo
