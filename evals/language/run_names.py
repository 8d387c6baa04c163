"""Names of runs whose speed is measured: which cache, how the text is written, and by which rule."""

from __future__ import annotations

from typing import NamedTuple

PLAIN = "plain"
"""The cache of a run without one."""


class RunName(NamedTuple):
    """A run's name in a result, "dkv-decode, blocks, quota"; a cache's own name may have commas."""

    cache: str
    decoding: str
    rule: str

    @classmethod
    def of(cls, text: str) -> RunName:
        """The parts of a name."""
        return cls(*text.rsplit(", ", 2))

    def __str__(self) -> str:
        return ", ".join(self)

    @property
    def plain(self) -> str:
        """The name of the plain model's run that was written in the same way."""
        return str(self._replace(cache=PLAIN))
