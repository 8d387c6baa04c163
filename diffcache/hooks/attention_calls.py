"""Lets a policy see, and replace, each attention that modules compute: queries, keys and values after norms and RoPE.

Every native attention of Diffusers ends in `scaled_dot_product_attention`, whatever its processor is; fused projections and
adapters come before it. A policy may keep keys and values, and put others in their place. What it keeps them for is its own
matter: some tokens of a picture, or the past of a video.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

NAMES = ("query", "key", "value", "attn_mask")


@dataclass(frozen=True)
class AttentionCall:
    """What one attention is computed from.

    Attributes:
        query: [batch..., queries, channels].
        key, value: [batch..., keys, channels].
        mask: as `scaled_dot_product_attention` takes it; None for none.
        options: its other arguments (`is_causal`, `scale`, `enable_gqa`).
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    options: dict[str, Any]

    def with_keys(self, key: Tensor, value: Tensor, mask: Tensor | None) -> AttentionCall:
        """The same queries on other keys and values."""
        return replace(self, key=key, value=value, mask=mask)

    def compute(self) -> Tensor:
        """[batch..., queries, channels]."""
        output: Tensor = functional.scaled_dot_product_attention(
            self.query, self.key, self.value, attn_mask=self.mask, **self.options
        )
        return output


class AttentionPolicy(Protocol):
    """Is asked to compute each attention."""

    def attend(self, call: AttentionCall) -> Tensor:
        """Returns what the attention returns."""


class AttentionCalls(TorchFunctionMode):
    """Inside, every attention goes to the policy.

    Args:
        policy: is asked.
    """

    def __init__(self, policy: AttentionPolicy) -> None:
        super().__init__()
        self.policy = policy

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        given = dict(zip((*NAMES, "dropout_p", "is_causal"), args, strict=False)) | kwargs
        query, key, value, mask = (given.pop(name, None) for name in NAMES)
        return self.policy.attend(AttentionCall(query, key, value, mask, given))
