"""Several processes share one search (`accelerate launch`): each holds all of it and renders its part of the calls.

In a single process these functions change nothing.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object, reduce
from torch import Tensor

from diffcache.schedulers.errors import ConfigError

T = TypeVar("T")


def this_process() -> PartialState:
    """This process among those that were launched. On a CPU others are looked for only if it is said that this one runs there."""
    return PartialState(cpu=not torch.accelerator.is_available())


def is_first() -> bool:
    """Whether this is the process that writes files."""
    return bool(this_process().is_main_process)


def place() -> str:
    """Which of how many processes this is."""
    state = this_process()
    return f"{state.process_index} of {state.num_processes}"


def broadcast(value: T) -> T:
    """The first process's value, in all processes: for what they measure differently, such as time."""
    values = [value]
    broadcast_object_list(values)
    return values[0]


def own_device() -> torch.device | None:
    """The device of this process, where several were launched; None: there is only one."""
    state = this_process()
    device: torch.device = state.device
    return device if state.num_processes > 1 else None


def wait() -> None:
    """Waits until all processes are here."""
    this_process().wait_for_everyone()


def shared(count: int, make: Callable[[int], T]) -> list[T]:
    """make(0), make(1), ... in this order, in all processes; each is made by one of them."""
    state = this_process()
    if state.num_processes == 1:
        return [make(i) for i in range(count)]
    mine = [(i, make(i)) for i in range(state.process_index, count, state.num_processes)]
    found: dict[int, T] = dict(gather_object(mine))
    return [found[i] for i in range(count)]


def share_of_calls(calls: Sequence[T]) -> list[T]:
    """The calls of this process.

    Raises:
        ConfigError: the number of calls is no multiple of the number of processes; a mean over processes would then weigh calls
            differently.
    """
    state = this_process()
    if len(calls) % state.num_processes:
        raise ConfigError(
            f"calls: {len(calls)} cannot be divided evenly between {state.num_processes} processes; give a multiple."
        )
    return list(calls[state.process_index :: state.num_processes])


def mean(tensor: Tensor) -> Tensor:
    """The mean of the processes' tensors."""
    averaged: Tensor = reduce(tensor.to(this_process().device), "mean").to(tensor.device)
    return averaged
