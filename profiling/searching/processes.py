"""Several processes share one search (`accelerate launch`): each holds all of it, and does its part of the rendering.

In a single process all of this does nothing.
"""

from collections.abc import Sequence
from typing import TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object, reduce
from torch import Tensor

from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.search.evolution import Evaluate

T = TypeVar("T")


def is_first() -> bool:
    """Whether it is this process that writes files."""
    return bool(PartialState().is_main_process)


def of_first(value: T) -> T:
    """The first process's value, which all go on with: a measured space, whether the time is up."""
    values = [value]
    broadcast_object_list(values)
    return values[0]


def wait() -> None:
    """Until all processes are here."""
    PartialState().wait_for_everyone()


def divided(evaluate: Evaluate) -> Evaluate:
    """Candidates dealt out to the processes, and all scores to each of them, in order: as one process would find them."""

    def scores(tables: Tensor) -> Tensor:
        state = PartialState()
        mine = range(state.process_index, len(tables), state.num_processes)
        found = evaluate(tables[list(mine)]) if mine else torch.empty(0, 2, dtype=torch.float64)
        parts = gather_object([(list(mine), found.tolist())])
        by_index = {i: score for part, scored in parts for i, score in zip(part, scored, strict=True)}
        return torch.tensor([by_index[i] for i in range(len(tables))], dtype=torch.float64)

    return scores


def share_of_calls(calls: Sequence[T]) -> list[T]:
    """This process's calls of a draw.

    Raises:
        ConfigError: they cannot be dealt out evenly, so that a mean over processes would weigh them unlike.
    """
    state = PartialState()
    if len(calls) % state.num_processes:
        raise ConfigError(
            f"calls: {len(calls)} cannot be dealt out evenly to {state.num_processes} processes; give a multiple."
        )
    return list(calls[state.process_index :: state.num_processes])


def mean(tensor: Tensor) -> Tensor:
    """Mean of the processes' tensors."""
    averaged: Tensor = reduce(tensor.to(PartialState().device), "mean").to(tensor.device)
    return averaged
