"""The calls of a search in three parts: what is fitted, chosen and verified on. No two parts share a prompt."""

from collections.abc import Sequence
from typing import NamedTuple

from diffcache.profiling.recording.calling import Call, calls_hash

SEEDED = ("generator", "latents")
"""What tells two calls of one prompt apart."""


class Parts(NamedTuple):
    """Calls in three parts.

    Attributes:
        fit: an engine measures the pipeline on these.
        choose: the best of its candidates is chosen on these.
        verify: on these the chosen one is measured once, in the end. Nothing depends on them. Empty if there are fewer than three calls.
    """

    fit: list[Call]
    choose: list[Call]
    verify: list[Call]

    @property
    def are_one(self) -> bool:
        """Whether there is one call only, so that nothing shows whether what is fitted helps on others."""
        return calls_hash(self.fit) == calls_hash(self.choose)


def three_parts(calls: Sequence[Call], fitted: int) -> Parts:
    """At most a third is for fitting; of the others every second one verifies. Of two calls none verifies; one is all that there is.

    Calls of one prompt stay together. If all have the same one, or none, they differ by their seeds only, and are divided by these.

    Args:
        calls: at least one.
        fitted: calls to fit on, at most.
    """
    if len(calls) < 3:
        return Parts([calls[0]], [calls[-1]], [])
    groups = _by_prompt(calls)
    if len(groups) < 3:
        groups = [[call] for call in calls]
    count = max(1, min(fitted, len(groups) // 3))
    fit, rest = groups[:count], groups[count:]
    return Parts(*([call for group in part for call in group] for part in (fit, rest[::2], rest[1::2])))


def _by_prompt(calls: Sequence[Call]) -> list[list[Call]]:
    """The calls in groups of one prompt each, in their order."""
    groups: dict[str, list[Call]] = {}
    for call in calls:
        asked = {name: value for name, value in call.items() if name not in SEEDED}
        groups.setdefault(calls_hash([asked]), []).append(call)
    return list(groups.values())
