"""Backends of Diffusers' attention registry that do not end in `scaled_dot_product_attention`: flash, sage, varlen and others.

While somebody looks on, such a backend's entry in the registry is a function that hands the call over; elsewhere, and in other
threads, it calls the backend as it is. When nobody looks on any more, the registry is as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from threading import RLock
from types import NoneType
from typing import Any

from diffusers.models.attention_dispatch import _AttentionBackendRegistry as registry
from torch import Tensor

Backend = Callable[..., Any]
"""From `query`, `key`, `value` [batch, tokens, heads, channels] and options, all by name, to [batch, tokens, heads, channels]."""

Handed = Callable[[Backend, dict[str, Any]], Tensor]
"""Is given a backend and its arguments, and returns what it would."""

_handed: ContextVar[Handed | None] = ContextVar("diffcache_attention_backends", default=None)
_lock = RLock()
_plain: dict[Any, Backend] = {}
_users = 0


@contextmanager
def backends_handed_to(handed: Handed | None) -> Iterator[None]:
    """Inside, in this context, every call of such a backend goes to `handed`; to itself, where that is None."""
    _enter()
    token = _handed.set(handed)
    try:
        yield
    finally:
        _handed.reset(token)
        _leave()


def active_backend() -> str:
    """The backend of attentions that name none: Diffusers' `attention_backend` context, or its environment variable, chooses it."""
    return str(registry.get_active_backend()[0])


def _enter() -> None:
    global _users
    with _lock:
        _users += 1
        if _users > 1:
            return
        for name, backend in registry._backends.items():
            if "native" not in name.value:
                _plain[name] = backend
        registry._backends.update({name: _handing(backend) for name, backend in _plain.items()})


def _leave() -> None:
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            registry._backends.update(_plain)
            _plain.clear()


def _handing(backend: Backend) -> Backend:
    @wraps(backend)
    def attend(**arguments: Any) -> Any:
        handed = _handed.get()
        plain_mask = isinstance(
            arguments.get("attn_mask"), (Tensor, NoneType)
        )  # flex attention has masks of its own
        if handed is None or arguments.get("return_lse") or not plain_mask:
            return backend(**arguments)
        return handed(backend, arguments)

    return attend
