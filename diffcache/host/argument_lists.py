"""The lists and dicts that a call is given: a denoiser may take tensors out of them, and a call that is made twice needs these twice."""

from collections.abc import Iterator
from typing import Any


class ArgumentLists:
    """What the plain lists and dicts among arguments hold before a call, wherever they are nested.

    Args:
        arguments: of the call.
    """

    def __init__(self, arguments: Any) -> None:
        self._before = [(each, each.copy()) for each in _lists_in(arguments)]

    def put_back(self) -> None:
        """Each list and dict holds again what it held."""
        for each, before in self._before:
            each.clear()
            if type(each) is list:
                each.extend(before)
            else:
                each.update(before)


def _lists_in(value: Any) -> Iterator[Any]:
    if type(value) in (list, dict):
        yield value
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _lists_in(item)
    elif type(value) is dict:
        for item in value.values():
            yield from _lists_in(item)
