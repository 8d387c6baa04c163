"""Lets a policy see, and replace, each attention that modules compute: queries, keys and values after norms and RoPE.

Every native attention of Diffusers ends in `scaled_dot_product_attention`, whatever its processor is; fused projections and
adapters come before it. Flash, sage and varlen attention go through Diffusers' registry of backends. A policy may keep keys and values, and put others in their place. What it keeps them for is its own
matter: some tokens of a picture, or the past of a video.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from diffcache.hooks.attention_backends import Backend, backends_handed_to

NAMES = ("query", "key", "value", "attn_mask")


@dataclass(frozen=True)
class AttentionCall:
    """What one attention is computed from.

    Attributes:
        query: [batch..., queries, channels].
        key, value: [batch..., keys, channels].
        mask: as `scaled_dot_product_attention` takes it; None for none.
        options: its other arguments (`is_causal`, `scale`, `enable_gqa`).
        function: computes it from query, key, value, mask and options.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    options: dict[str, Any]
    function: Callable[..., Tensor]

    def with_keys(self, key: Tensor, value: Tensor, mask: Tensor | None) -> AttentionCall:
        """The same queries on other keys and values."""
        return replace(self, key=key, value=value, mask=mask)

    def compute(self) -> Tensor:
        """[batch..., queries, channels]."""
        return self.function(self.query, self.key, self.value, attn_mask=self.mask, **self.options)


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
        self._routed = ExitStack()
        self._in_backend = False

    def __enter__(self) -> Any:
        self._routed.enter_context(backends_handed_to(self._backend))
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: object) -> None:
        try:
            super().__exit__(*error)  # type: ignore[no-untyped-call]
        finally:
            self._routed.close()

    def _backend(self, backend: Backend, arguments: dict[str, Any]) -> Tensor:
        """A call of a backend of the registry."""
        query, key, value = (arguments.pop(name).transpose(1, 2) for name in NAMES[:3])
        mask = arguments.pop("attn_mask", None)
        if mask is not None and mask.ndim == 2:
            mask = mask[:, None, None]  # of keys: [batch, keys]
        call = AttentionCall(query, key, value, mask, arguments, partial(self._computed, backend))
        return self.policy.attend(call).transpose(1, 2)

    def _computed(
        self, backend: Backend, query: Tensor, key: Tensor, value: Tensor, **options: Any
    ) -> Tensor:
        if options["attn_mask"] is None:
            options.pop("attn_mask")
        heads_last = (tensor.transpose(1, 2) for tensor in (query, key, value))
        self._in_backend = True
        try:
            output: Tensor = backend(**dict(zip(NAMES, heads_last, strict=False)), **options)
        finally:
            self._in_backend = False
        return output.transpose(1, 2)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not functional.scaled_dot_product_attention or self._in_backend:
            return func(*args, **kwargs)
        given = dict(zip((*NAMES, "dropout_p", "is_causal"), args, strict=False)) | kwargs
        query, key, value, mask = (given.pop(name, None) for name in NAMES)
        return self.policy.attend(AttentionCall(query, key, value, mask, given, func))
