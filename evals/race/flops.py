"""The race's one ruler for compute: the floating-point operations that a denoiser really runs, whoever skips the rest."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from diffcache.targets import denoisers_of


def _cpu_attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))  # type: ignore[no-untyped-call]


COSTS: dict[Any, Callable[..., int]] = {
    **flop_registry,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _cpu_attention,  # PyTorch's table lacks it
}


class FlopCount(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up matrix products, convolutions and attention while it is entered.

    Attributes:
        total: floating-point operations; a multiplication with its addition is two.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        cost = COSTS.get(func.overloadpacket)
        if cost is not None:
            self.total += cost(*args, **(kwargs or {}), out_val=result)
        return result


@contextmanager
def counted(pipe: Any) -> Iterator[FlopCount]:
    """Counts inside every denoiser call of a pipeline. Enter it before a cache is attached."""
    count = FlopCount()

    def enter(*_: Any) -> None:
        count.__enter__()  # type: ignore[no-untyped-call]

    def leave(*_: Any) -> None:
        count.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    hooks = [module.register_forward_pre_hook(enter) for module in denoisers_of(pipe).values()]
    hooks += [module.register_forward_hook(leave, always_call=True) for module in denoisers_of(pipe).values()]
    try:
        yield count
    finally:
        for hook in hooks:
            hook.remove()
