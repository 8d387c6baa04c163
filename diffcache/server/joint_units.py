"""Units inside a denoiser, in a forward whose rows belong to several runs: each unit computes the rows that need it."""

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from diffcache.discovery.cuts import holds_blank, without_blanks
from diffcache.engine.execution import CarriedUnit, SiteWatcher
from diffcache.server.rows import (
    Arguments,
    Form,
    IndivisibleError,
    Ranges,
    Splitter,
    assembled,
    consecutive,
    count_of,
    divided,
)

Forward = Callable[..., Any]


@dataclass(frozen=True)
class _Inside:
    """The runs whose rows are computed in a part of the forward.

    Attributes:
        watchers: one for each run; None for one that computes everything.
        rows: each run's.
        total: number of rows.
    """

    watchers: Sequence[SiteWatcher | None]
    rows: Sequence[Ranges]
    total: int


class JointUnits(Container[int]):
    """Asks the watcher of each run what is to be done with its rows at each unit.

    Where all rows of a unit are computed or none, nothing is split. Else the unit computes its rows as a smaller batch, and
    so do the units inside it. Runs without a watcher compute all of theirs. What no run looks at need not be split. If arguments
    or outputs that a run looks at cannot be split by rows, every run with sites inside computes the call by itself.

    Args:
        watchers: one for each run; None for one that computes everything.
        rows: each run's.
        total: number of rows.
        splitter: takes arguments apart.
    """

    def __init__(
        self, watchers: Sequence[SiteWatcher | None], rows: Sequence[Ranges], total: int, splitter: Splitter
    ) -> None:
        self._all = self._inside = _Inside(watchers, rows, total)
        self._splitter = splitter
        self._is_off = False

    @property
    def watches(self) -> Container[int]:
        """Itself: which units are watched may change at each call."""
        return self

    def __contains__(self, key: object) -> bool:
        watchers = self._inside.watchers
        return not self._is_off and any(one is not None and key in one.watches for one in watchers)

    def unit(self, module: nn.Module, forward: Forward, args: Any, kwargs: dict[str, Any]) -> Any:
        """What a unit gives all runs."""
        inside, arguments = self._inside, (args, kwargs)
        try:
            form = self._splitter.form(id(module), arguments, inside.total)
        except IndivisibleError:
            watching = [one for one in inside.watchers if one is not None and id(module) in one.watches]
            passed = all(one.passes_by(module) for one in watching)
            output = forward(*args, **kwargs)
            return output if passed else self._apart(output)
        parts = form.parts(arguments, inside.rows)
        outputs, calls, looks = _asked(module, inside.watchers, parts)
        computing = [i for i in range(len(parts)) if i not in outputs]
        if len(computing) == len(parts):
            output = forward(*args, **kwargs)
            own = [output] * len(parts)
            if looks:  # else it may have no rows, as tables of positions
                try:
                    own = divided(output, form, inside.rows, _leaves(form, arguments, parts))
                except IndivisibleError:
                    return self._apart(output)
            for i, call in calls.items():
                _end(call, own[i])
            return output
        if computing:
            given = [parts[i] for i in computing]
            counts = [count_of(inside.rows[i]) for i in computing]
            some, rows = Form(sum(counts), form.has_rows), consecutive(counts)
            joint = form.joined(given, counts)
            with self._only(_Inside([inside.watchers[i] for i in computing], rows, some.total)):
                output = forward(*joint[0], **joint[1])
            own = divided(output, some, rows, _leaves(some, joint, given))
            for i, one in zip(computing, own, strict=True):
                outputs[i] = _end(calls[i], one) if i in calls else one
        each = [outputs[i] for i in range(len(parts))]
        blank = [*map(holds_blank, each)]
        if any(blank) and not all(blank):  # joined with theirs, values of other runs would count as blank
            each = [*map(without_blanks, each)]
        return assembled(each, form, inside.rows)

    @contextmanager
    def _only(self, inside: _Inside) -> Iterator[None]:
        """A unit computes some of the rows: its own units see these only."""
        outer, self._inside = self._inside, inside
        try:
            yield
        finally:
            self._inside = outer

    def _apart(self, output: Any) -> Any:
        """Rows cannot be told apart in here: runs with sites inside compute by themselves, now and from now on."""
        self._is_off = self._splitter.units_apart = True
        for watcher in self._all.watchers:
            if watcher is not None:
                watcher.stray()
        return output


def _asked(
    module: nn.Module, watchers: Sequence[SiteWatcher | None], parts: Sequence[Arguments]
) -> tuple[dict[int, Any], dict[int, CarriedUnit], bool]:
    """What stands in for a unit in the runs that skip it; the calls of the others; whether any of these looks at what it returns."""
    outputs, calls, looks = dict[int, Any](), dict[int, CarriedUnit](), False
    for i, (watcher, (args, kwargs)) in enumerate(zip(watchers, parts, strict=True)):
        if watcher is not None and id(module) in watcher.watches:
            call = watcher.unit_call(module, args, kwargs)
            try:
                looks = next(call) or looks
                calls[i] = call
            except StopIteration as end:
                outputs[i] = end.value
    return outputs, calls, looks


def _end(call: CarriedUnit, output: Any) -> Any:
    """What a run makes of its rows of what a unit computed."""
    try:
        call.send(output)
    except StopIteration as end:
        return end.value
    raise AssertionError("a unit is computed once")


def _leaves(form: Form, arguments: Arguments, parts: Sequence[Arguments]) -> list[list[Any]]:
    return [form.flatten(each)[0] for each in (arguments, *parts)]
