"""Keeps the caches of all requests within a bound, and shares it fairly."""

from collections.abc import Collection, Sequence

from diffcache.server.request import Request

FEWER_BITS, HOST, RECOMPUTE = "fewer bits", "host", "recompute"

GENTLE = (FEWER_BITS, HOST)
"""What is done first to make a request's cache smaller."""

MARGIN = 4
"""A cache is dropped in favour of another request's only if it has saved so many calls more, so that they do not take turns at
every call."""


class Eviction:
    """A bound on the bytes that all requests hold on the device.

    A request that holds at most the bound over the number of requests with a cache loses nothing. Of those above, the largest
    is made smaller: by fewer bits, then by host memory. When all above are as small as they get, the one that has saved most
    calls is dropped, and computes its next call. The request that has just stored gives way itself, unless another has saved
    `MARGIN` calls more.

    Args:
        bound: bytes.
        gentle: which of `GENTLE` may be done; caches are dropped only after these.
        has_host: the device has memory of its own, so that host memory is elsewhere.
    """

    def __init__(self, bound: int, gentle: Collection[str] = GENTLE, *, has_host: bool) -> None:
        self.bound = bound
        self.narrows = FEWER_BITS in gentle
        self.moves = HOST in gentle and has_host

    def keep(self, requests: Sequence[Request], newest: Request) -> None:
        """Makes room after a call of a request has stored something.

        Args:
            requests: all that hold something.
            newest: the one that was called.
        """
        left = [request for request in requests if not request.in_call]
        while sum(request.cached_bytes for request in requests) > self.bound:
            share = self.bound / len(requests)
            above = [request for request in left if request.cached_bytes > share]
            if not above:
                return  # the others are in calls that go on, and make room when these have stored
            largest_first = sorted(above, key=lambda request: -request.cached_bytes)
            if not any(self._shrink(request) for request in largest_first):
                left.remove(_drop(above, newest))

    def _shrink(self, request: Request) -> bool:
        """Makes a request's cache smaller without losing it; whether it could."""
        before, narrower = request.cached_bytes, request.narrower()
        if request.host_bytes:
            return False
        if self.narrows and narrower is not None:
            request.recode(narrower, on_host=False)
            request.count_eviction(FEWER_BITS)
        elif self.moves:
            request.recode(request.cache_dtype, on_host=True)
            request.count_eviction(HOST)
        return request.cached_bytes < before


def _drop(above: Sequence[Request], newest: Request) -> Request:
    chosen = max(above, key=lambda request: request.usage.saved)
    if newest in above and chosen.usage.saved - newest.usage.saved < MARGIN:
        chosen = newest
    chosen.forget()
    chosen.count_eviction(RECOMPUTE)
    return chosen
