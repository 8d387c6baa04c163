"""The tensors that kernels are measured on: those of FLUX at 1024 x 1024, Wan 14B at 720p, and LLaDA 8B."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from diffcache.kernels.attention_drift import attention_drift
from diffcache.kernels.attention_probe import attention_received
from diffcache.kernels.dispatch import FP8, Op
from diffcache.kernels.extrapolate import weighted_sum
from diffcache.kernels.likeliest import likeliest
from diffcache.kernels.quantize import quantize_rows
from diffcache.kernels.relative_l1 import l1_means, mean_abs, secant_means
from diffcache.kernels.residual import subtract
from diffcache.kernels.rope_scatter import rope_scatter
from diffcache.kernels.row_drift import replace_and_compare

BF16 = torch.bfloat16
FEATURES = {
    "FLUX-1024": (1, 4096, 3072),
    "Wan-14B-720p": (1, 75_600, 5120),
    "LLaDA-8B": (1, 1152, 4096),
}
"""[batch, tokens, channels] of a block's output."""


@dataclass(frozen=True)
class TextSizes:
    """Sizes of a language model, LLaDA 8B's by default.

    Attributes:
        heads: as many for keys.
        head: channels of a head.
        slots: tokens of prompt and answer.
        vocabulary: its size.
        answer, active, tracked: tokens that are compared, computed, and followed.
    """

    heads: int = 32
    head: int = 128
    slots: int = 1152
    vocabulary: int = 126_464
    answer: int = 256
    active: int = 32
    tracked: int = 16


LLADA = TextSizes()
LINEAR = [2.0, -1.0]


@dataclass(frozen=True)
class Case:
    """One op on one model's tensors.

    Attributes:
        model: that has such tensors.
        op: what is measured.
        variant: names the arguments, if an op is measured on several.
        arguments: makes them on the default device.
        traffic: from arguments and result to the bytes that have to be read and written; by default all of them.
    """

    model: str
    op: Op[..., Any]
    variant: str
    arguments: Callable[[], tuple[Any, ...]]
    traffic: Callable[[Any, Any], int] = lambda arguments, result: nbytes(arguments) + nbytes(result)

    @property
    def name(self) -> str:
        return " ".join(part for part in (self.op.reference.__name__, self.variant) if part)


def nbytes(value: Any) -> int:
    """Bytes of all tensors in arguments or results; a tensor that is there twice is counted once."""
    if isinstance(value, Tensor):
        return value.nbytes
    items = {id(item): item for item in value} if isinstance(value, (tuple, list)) else {}
    return sum(nbytes(item) for item in items.values())


def cases(features: Mapping[str, tuple[int, ...]] = FEATURES, text: TextSizes = LLADA) -> Iterator[Case]:
    """Every op at every size at which it is used."""
    for model, shape in features.items():
        yield from _feature_cases(model, shape)
    yield from _language_cases("LLaDA-8B", text)


def _feature_cases(model: str, shape: tuple[int, ...]) -> Iterator[Case]:
    def some(count: int, dtype: torch.dtype = BF16) -> list[Tensor]:
        return [torch.randn(shape, dtype=dtype) for _ in range(count)]

    def eight_bits(dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
        values, scales = zip(*(quantize_rows(x, None, dtype) for x in some(2)), strict=True)
        return list(values), list(scales)

    def corrected(dtype: torch.dtype) -> tuple[Any, ...]:
        gain, shift = torch.rand(2, shape[-1])
        return (*eight_bits(dtype), LINEAR, *some(1), gain, shift, -1, True, BF16)

    plain = (None, None, -1, False)
    yield Case(model, mean_abs, "", lambda: tuple(some(2)))
    yield Case(model, l1_means, "", lambda: tuple(some(2)))
    yield Case(model, secant_means, "", lambda: tuple(some(4)))
    yield Case(model, subtract, "to fp32", lambda: (*some(2), torch.float32))
    yield Case(model, subtract, "to bf16", lambda: (*some(2), BF16))
    yield Case(
        model, weighted_sum, "hold fp32", lambda: (some(1, torch.float32), [], [1.0], *some(1), *plain, BF16)
    )
    yield Case(model, weighted_sum, "linear bf16", lambda: (some(2), [], LINEAR, *some(1), *plain, BF16))
    for dtype, name in ((torch.int8, "int8"), (FP8, "e4m3")):
        yield Case(model, quantize_rows, name, partial(lambda dtype: (*some(2), dtype), dtype))
        yield Case(model, weighted_sum, f"linear {name} corrected", partial(corrected, dtype))


def _language_cases(model: str, size: TextSizes) -> Iterator[Case]:
    scale = size.head**-0.5

    def heads(tokens: int) -> Tensor:
        return torch.randn(1, size.heads, tokens, size.head, dtype=BF16)

    def written() -> tuple[Any, ...]:
        rows, angles = torch.randperm(size.slots)[None, : size.active], torch.rand(1, size.active, size.head)
        new = [heads(size.active) for _ in range(3)]
        return (*new, angles.cos(), angles.sin(), rows, heads(size.slots), heads(size.slots))

    def compared(over_keys: bool) -> tuple[Any, ...]:
        rows, share = (
            torch.randperm(size.slots)[None, : size.active],
            torch.full((1, size.active), 1 / size.active),
        )
        written = heads(size.slots), rows, heads(size.active)
        return heads(size.active + size.tracked), share, heads(size.tracked), *written, None, scale, over_keys

    def active_rows(arguments: Any, result: Any) -> int:
        return 2 * nbytes(arguments[:3]) + nbytes(arguments[3:6])

    yield Case(model, rope_scatter, "", written, active_rows)
    yield Case(
        model,
        replace_and_compare,
        "",
        lambda: (heads(size.answer), heads(size.answer)),
        lambda arguments, result: nbytes(arguments) + nbytes(arguments[:1]) + nbytes(result),
    )
    yield Case(
        model,
        attention_received,
        "",
        lambda: (
            heads(size.active),
            heads(size.slots),
            torch.full((1, size.active), 1 / size.active),
            None,
            scale,
        ),
    )
    for over_keys, name in ((False, "over heads"), (True, "over keys")):
        yield Case(model, attention_drift, name, partial(compared, over_keys))
    yield Case(model, likeliest, "", lambda: (torch.randn(size.active, size.vocabulary, dtype=BF16),))
