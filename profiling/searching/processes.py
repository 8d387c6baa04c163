"""Several processes share one search (`accelerate launch`): each holds all of it and renders its part of the candidates.

In a single process these functions change nothing.
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
    """Whether this is the process that writes files."""
    return bool(PartialState().is_main_process)


def broadcast(value: T) -> T:
    """The first process's value, in all processes: for what they measure differently, such as time."""
    values = [value]
    broadcast_object_list(values)
    return values[0]


def wait() -> None:
    """Waits until all processes are here."""
    PartialState().wait_for_everyone()


def divided(evaluate: Evaluate) -> Evaluate:
    """Divides the tables between the processes, and gives all scores to each of them, in the order of the tables."""

    def scores(tables: Tensor) -> Tensor:
        state = PartialState()
        mine = range(state.process_index, len(tables), state.num_processes)
        found = evaluate(tables[list(mine)]) if mine else torch.empty(0, 2, dtype=torch.float64)
        parts = gather_object([(list(mine), found.tolist())])
        by_index = {i: score for part, scored in parts for i, score in zip(part, scored, strict=True)}
        return torch.tensor([by_index[i] for i in range(len(tables))], dtype=torch.float64)

    return scores


def share_of_calls(calls: Sequence[T]) -> list[T]:
    """The calls of this process.

    Raises:
        ConfigError: the number of calls is no multiple of the number of processes; a mean over processes would then weigh calls
            differently.
    """
    state = PartialState()
    if len(calls) % state.num_processes:
        raise ConfigError(
            f"calls: {len(calls)} cannot be divided evenly between {state.num_processes} processes; give a multiple."
        )
    return list(calls[state.process_index :: state.num_processes])


def mean(tensor: Tensor) -> Tensor:
    """The mean of the processes' tensors."""
    averaged: Tensor = reduce(tensor.to(PartialState().device), "mean").to(tensor.device)
    return averaged
