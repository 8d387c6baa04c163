"""The global random generator, put back after a noise scheduler has been tried out."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


@dataclass
class Use:
    """Whether anything was drawn; known when the context is left."""

    was_used: bool = False


@contextmanager
def generator_put_back() -> Iterator[Use]:
    """The CPU's global generator is as before afterwards, whatever is drawn from it inside."""
    before, use = torch.get_rng_state(), Use()
    try:
        yield use
    finally:
        use.was_used = not torch.equal(before, torch.get_rng_state())
        if use.was_used:  # only if it has changed: other threads use this generator too
            torch.set_rng_state(before)
