"""What every calibration measures call by call: each once, journaled, and shared among the processes."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from diffcache.profiling.recording.calling import Call, calls_hash, refuse_no_calls
from diffcache.profiling.recording.journal import Entry, journal, key_of
from diffcache.profiling.recording.processes import shared
from diffcache.schedulers.errors import ConfigError

STEPS_DIFFER = "calls: their numbers of steps differ; give calls with one number."
"""The refusal of calls over which no mean can be taken."""


def of_each_call(
    kind: str, calls: Sequence[Call], measured: Callable[[Call], Entry], **about: Any
) -> list[Entry]:
    """What is measured of each call, in their order, in all processes. What the journal has is not measured again.

    Args:
        kind: of the journal's entries.
        calls: keyword arguments of each call.
        measured: renders one of them.
        about: what else the measurement depends on.

    Raises:
        ConfigError: there is no call.
    """
    refuse_no_calls(calls)
    keys = [key_of(kind, call=calls_hash([call]), **about) for call in calls]
    return shared(len(calls), lambda i: journal().entry(keys[i], lambda: measured(calls[i])))


def mean_over_calls(tensors: Sequence[Tensor]) -> Tensor:
    """The mean of what was measured of each call, tensors over its ticks.

    Raises:
        ConfigError: the calls have different numbers of steps.
    """
    if len({tensor.shape for tensor in tensors}) > 1:
        raise ConfigError(STEPS_DIFFER)
    return torch.stack(list(tensors)).mean(dim=0)
