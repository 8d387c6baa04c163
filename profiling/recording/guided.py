"""The velocity that a noise scheduler gets: guidance makes it of what several passes return."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from diffcache.host.conventions import UNCONDITIONAL
from diffcache.host.rows import conditional_first
from diffcache.schedulers.guidance import Guidance


def is_conditional_first(pipe: Any) -> bool:
    """Whether the conditional half of a pipeline's batches is the first; in most pipelines it is the last."""
    parts = getattr(pipe, "components", {}).values()
    return any(conditional_first(part) for part in parts)


def passes(
    outputs: Mapping[str, Tensor], doubled: bool, first: bool, *, in_order: bool = False
) -> tuple[Tensor, ...]:
    """What each guidance pass of a tick returned, the conditional one first.

    Args:
        outputs: of a tick's calls by branch, in their order, [batch, ...].
        doubled: each call holds two passes in one batch.
        first: see `is_conditional_first`.
        in_order: this counts for two calls, too, and not their names.
    """
    every = tuple(outputs.values())
    if doubled and len(every) == 1:
        halves = every[0].chunk(2)
        return halves if first else halves[::-1]
    if in_order:
        return every if first else every[::-1]
    return tuple(output for _, output in sorted(outputs.items(), key=lambda named: UNCONDITIONAL in named[0]))


def guided(found: tuple[Tensor, ...], guidance: Guidance) -> tuple[Tensor, ...]:
    """What the noise scheduler gets of two passes; all of them as they are if these are not two.

    Args:
        found: what each pass returned, the conditional one first.
        guidance: of the tick.
    """
    if len(found) != 2 or found[0].shape != found[1].shape:
        return found
    return (guidance.of(*found),)
