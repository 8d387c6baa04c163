"""`serving`: starts a server over a denoiser, and leaves the denoiser as it was."""

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from torch import nn

from diffcache.attach.attachment import key_of
from diffcache.attach.loop_checks import check_denoiser
from diffcache.attach.swapping import swap_in_all
from diffcache.hooks.attachments import Attachment, forget, own_attachment, register
from diffcache.host.compiled import uncompiled
from diffcache.host.network_facts import facts_of_networks
from diffcache.host.parallel import agreement_of
from diffcache.host.rows import counts_rows
from diffcache.reports.run_report import RunReport
from diffcache.schedulers.errors import ConfigError, TargetError
from diffcache.schedulers.numbers_given import check_bytes
from diffcache.server.eviction import GENTLE, Eviction
from diffcache.server.server import Limits, Server


@dataclass(eq=False)
class _Serving(Attachment):
    """What `serving` attached to a denoiser."""

    @property
    def in_use(self) -> str:
        return "is being served: leave its `with serving(...)` block first"

    def report(self) -> RunReport:
        raise TargetError("this denoiser is being served: each request has a report() of its own.")


@contextmanager
def serving(
    denoiser: nn.Module,
    *,
    max_cache_bytes: int | None = None,
    eviction: Collection[str] = GENTLE,
    timeout: float | None = None,
    shared: Collection[str] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Server]:
    """Serves many requests with one denoiser: the rows of one call belong to different requests at different steps.

    Each request is a run with a cache of its own. Rows that are reused are left out of the call, and the others are computed
    as one smaller batch.

        with torch.no_grad(), serving(pipe.transformer) as server:
            a = server.request(28, config="easycache", noise_scheduler=scheduler_a)
            b = server.request(50, speedup=2.0, noise_scheduler=scheduler_b)
            with server.batch([(a, 3), (b, 17)]):
                v = pipe.transformer(torch.cat([x_a, x_b]), torch.stack([t_a, t_b]), ...)

    Args:
        denoiser: not accelerated. Its rows must not depend on each other.
        max_cache_bytes: what all requests may hold at once on the device, between two calls. While a request's newly
            computed features are stored, they come on top. None: no bound.
        eviction: what is done to keep to it before caches are dropped: "fewer bits", "host" (where the device has memory of its own).
        timeout: seconds after which a request that is in no batch is ended; None: never. Not with several processes, whose
            clocks differ.
        shared: names of arguments that all requests share, such as positional ids without a batch dimension; () for none. None: their
            shapes tell, or the call is refused.
        clock: tells the time in seconds.

    Yields:
        The server. When the block is left all requests end, and the denoiser is as it was.

    Raises:
        TargetError: this is no denoiser, it is accelerated or served already, its class cannot be swapped, or its attention counts rows.
        ConfigError: an option out of range.
    """
    check_denoiser(denoiser, "serving")
    plain = key_of(denoiser)
    limits = _limits(denoiser, max_cache_bytes, eviction, timeout, clock, shared)
    if own_attachment(plain) is not None:
        raise TargetError(
            f"this {type(plain).__name__} is accelerated or served already: restore it first, and give each request its config=."
        )
    if counts_rows(uncompiled(denoiser)):
        raise TargetError(
            f"the attention of this {type(plain).__name__} finds guidance passes by counting rows, so that requests cannot share calls: "
            "run each in a denoising_run of its own."
        )
    denoisers = {"denoiser": denoiser}
    attachment = _Serving(None, WeakSet(swap_in_all(denoisers, facts_of_networks(denoisers), None)))
    register(plain, attachment)
    server = Server(denoiser, attachment, limits)
    try:
        yield server
    finally:
        server.close()
        if own_attachment(plain) is attachment:
            forget(plain)


def _limits(
    denoiser: nn.Module,
    bound: Any,
    gentle: Collection[str],
    timeout: float | None,
    clock: Callable[[], float],
    shared: Collection[str] | None,
) -> Limits:
    if bound is not None:
        check_bytes(bound)
    if isinstance(gentle, str) or not set(gentle) <= set(GENTLE):
        raise ConfigError(f"eviction takes some of {GENTLE}, not {gentle!r}.")
    if timeout is not None and not (isinstance(timeout, (int, float)) and timeout > 0):
        raise ConfigError(f"timeout must be a number of seconds above 0, not {timeout!r}.")
    if timeout is not None and agreement_of(uncompiled(denoiser)) is not None:
        raise ConfigError(
            "timeout= with several processes, whose clocks differ: abort requests where batches are made."
        )
    if isinstance(shared, str):
        raise ConfigError(f"shared takes names of arguments, as a tuple: ({shared!r},).")
    if not isinstance(shared, (Collection, type(None))) or any(
        not isinstance(name, str) for name in shared or ()
    ):
        raise ConfigError(f"shared takes names of arguments, as a tuple, not {shared!r}.")
    device = next((p.device for p in denoiser.parameters()), torch.device("cpu"))
    keeper = None if bound is None else Eviction(bound, gentle, has_host=device.type != "cpu")
    return Limits(keeper, timeout, clock, None if shared is None else frozenset(shared))
