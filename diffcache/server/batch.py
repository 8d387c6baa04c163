"""One batch: the calls of a denoiser whose rows belong to several requests."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from torch import nn

from diffcache.engine.execution import Invocation
from diffcache.engine.scopes import Forward, Scope
from diffcache.engine.served import Served
from diffcache.host.call import Call
from diffcache.host.compiled import uncompiled
from diffcache.schedulers.errors import ConfigError, TargetError
from diffcache.schedulers.numbers_given import is_count
from diffcache.server.joint import SharedCall, Together
from diffcache.server.request import Request
from diffcache.server.rows import Ranges, Splitter, assembled, count_of
from diffcache.server.stats import Totals


@dataclass(frozen=True)
class Entry:
    """A request in a batch, and how many samples it has."""

    request: Request
    rows: int


@dataclass(frozen=True)
class Sharing:
    """What all batches of a server have in common.

    Attributes:
        served: the denoiser by identity, compiled or not.
        splitter: takes arguments apart.
        totals: where what is done is counted.
        stored: is told of each request whose call is done.
        locked: a lock for `totals`.
    """

    served: Mapping[int, Served]
    splitter: Splitter
    totals: Totals
    stored: Callable[[Request], None]
    locked: Any


class BatchScope(Scope):
    """Serves the calls of a denoiser inside `Server.batch`.

    Args:
        entries: the requests.
        sharing: with the server's other batches.
        by_request: rows of both passes of a request lie together.
    """

    hides = False

    def __init__(self, entries: Sequence[Entry], sharing: Sharing, *, by_request: bool) -> None:
        super().__init__(None, {})
        self.served = dict(sharing.served)
        self._entries, self._sharing, self._by_request = entries, sharing, by_request
        self._is_busy = False

    def call(self, module: nn.Module, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The denoiser is called for all requests that await a guidance pass."""
        if self._is_busy:  # an OptimizedModule that fell back to its eager original
            return forward(*args, **kwargs)
        began, served = perf_counter(), self._sharing.served[id(uncompiled(module))]
        call = Call(served.signature, args, kwargs)
        entries = [entry for entry in self._entries if entry.request.awaits_pass()]
        rows = rows_of(entries, by_request=self._by_request)
        _check_rows(entries, rows, call)
        shared = self._shared(module, forward, call, rows, served)
        carried = []
        for entry, own, part in zip(entries, rows, shared.parts, strict=True):
            by_itself = shared.spent.counting(forward, count_of(own))
            asked = Invocation(
                served.module,
                by_itself,
                Call(served.signature, *part),
                self.context,
                shared.reuses_memory,
                served.network,
            )
            carried.append(entry.request.carry_out(served, asked))
        together = Together(shared, carried, lambda i: self._stored(entries[i].request))
        with self._calling([entry.request for entry in entries], together, began):
            return assembled(together.run(), shared.form, rows)

    @contextmanager
    def _calling(self, requests: Sequence[Request], together: Together, began: float) -> Iterator[None]:
        """A call goes on. If it is broken off, its requests drop what they have stored."""
        sharing, failed = self._sharing, True
        with sharing.locked:
            self._is_busy = True
            for request in requests:
                request.in_call = True
        try:
            yield
            failed = False
        finally:
            with sharing.locked:
                self._is_busy = False
                for request in requests:
                    if failed:
                        request.fail()
                sharing.totals.add(together, perf_counter() - began, failed=failed)

    def _stored(self, request: Request) -> None:
        request.in_call = False
        self._sharing.stored(request)

    def _shared(
        self, module: nn.Module, forward: Forward, call: Call, rows: Sequence[Ranges], served: Served
    ) -> SharedCall:
        arguments, total, splitter = (call.args, call.kwargs), call.batch, self._sharing.splitter
        if len(rows) == 1:  # all of it belongs to one request
            form, parts = splitter.form_of_one(arguments, total), [arguments]
        else:
            form = splitter.form(
                id(served.module), arguments, total, listed=not call.batched, named=list(call.tensors.items())
            )
            parts = form.parts(arguments, rows)
        compiled = served.network.holds_compiled or module is not served.module
        return SharedCall(forward, arguments, form, rows, parts, splitter, compiled)


def rows_of(entries: Sequence[Entry], *, by_request: bool) -> list[Ranges]:
    """Which rows of a call belong to each entry.

    Args:
        entries: in order.
        by_request: passes of a request lie together; else the first pass of all comes first.
    """
    if by_request:
        places = [(i, entry.rows) for i, entry in enumerate(entries) for _ in range(entry.request.width)]
    else:
        most = max((entry.request.width for entry in entries), default=0)
        places = [
            (i, entry.rows)
            for nth in range(most)
            for i, entry in enumerate(entries)
            if nth < entry.request.width
        ]
    found: list[list[tuple[int, int]]] = [[] for _ in entries]
    begin = 0
    for i, count in places:
        if found[i] and found[i][-1][1] == begin:
            found[i][-1] = (found[i][-1][0], begin + count)
        else:
            found[i].append((begin, begin + count))
        begin += count
    return list(found)


def _check_rows(entries: Sequence[Entry], rows: Sequence[Ranges], call: Call) -> None:
    if not entries:
        raise TargetError(
            "all guidance passes of this batch's requests have been called: begin another batch for the next step."
        )
    wanted = sum(map(count_of, rows))
    if call.batch != wanted:
        each = ", ".join(
            f"{entry.request.name}: {count_of(own)}" for entry, own in zip(entries[:4], rows, strict=False)
        )
        more = ", ..." if len(entries) > 4 else ""
        raise TargetError(
            f"the denoiser was called with {call.batch} rows, and this batch's requests have {wanted} ({each}{more}): give "
            "rows_per_request=, and guidance= to requests with two passes."
        )


def check_entries(entries: Any) -> None:
    """Refuses what are no pairs of a request and a step, with ConfigError."""
    for entry in entries if isinstance(entries, Sequence) else [entries]:
        if not (isinstance(entry, Sequence) and len(entry) == 2 and isinstance(entry[0], Request)):
            raise ConfigError(
                f"batch() takes a list of requests, each with the step that it is at, [(request, 0)], not {entry!r}."
            )


def row_counts(rows: int | Sequence[int], requests: int) -> list[int]:
    """The samples of each request.

    Raises:
        ConfigError: these are no whole numbers above 0, or not one for each request.
    """
    counts = list(rows) if isinstance(rows, Iterable) else [rows] * requests
    if len(counts) != requests or not all(map(is_count, counts)):
        raise ConfigError(
            f"rows_per_request takes one whole number above 0, or one for each of the {requests} requests, not {rows!r}."
        )
    return counts
