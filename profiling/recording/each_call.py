"""What every calibration measures call by call: each once, journaled, and shared among the processes."""

from collections.abc import Callable, Sequence
from typing import Any

from diffcache.profiling.recording.calling import Call, calls_hash
from diffcache.profiling.recording.journal import Entry, journal, key_of
from diffcache.profiling.recording.processes import shared


def of_each_call(
    kind: str, calls: Sequence[Call], measured: Callable[[Call], Entry], **about: Any
) -> list[Entry]:
    """What is measured of each call, in their order, in all processes. What the journal has is not measured again.

    Args:
        kind: of the journal's entries.
        calls: keyword arguments of each call.
        measured: renders one of them.
        about: what else the measurement depends on.
    """
    keys = [key_of(kind, call=calls_hash([call]), **about) for call in calls]
    return shared(len(calls), lambda i: journal().entry(keys[i], lambda: measured(calls[i])))
