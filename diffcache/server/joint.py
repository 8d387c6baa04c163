"""Carries out a denoiser call for several runs at once: what has to be computed is computed in one forward."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from diffcache.engine.execution import Carried, Computation, Need
from diffcache.engine.vote import Vote
from diffcache.hooks.watcher import watched
from diffcache.host.call import version_of
from diffcache.schedulers.errors import TargetError
from diffcache.server.joint_units import JointUnits
from diffcache.server.rows import Arguments, Form, Ranges, Splitter, consecutive, count_of, divided

WRITES = (
    "this denoiser writes into its arguments, so that its requests cannot share calls: run each in a denoising_run of "
    "its own."
)


@dataclass
class Spent:
    """What a shared call has taken, with the calls that its runs make by themselves.

    Attributes:
        seconds: time spent in the denoiser's forward.
        rows: rows that were computed.
    """

    seconds: float = 0.0
    rows: int = 0

    def counting(self, forward: Callable[..., Any], rows: int) -> Callable[..., Any]:
        """The same forward, each call of which counts as so many rows. One that is broken off counts only as time."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            began = perf_counter()
            try:
                output = forward(*args, **kwargs)
            finally:
                self.seconds += perf_counter() - began
            self.rows += rows
            return output

        return counted


@dataclass(frozen=True)
class SharedCall:
    """One call of a denoiser whose rows belong to several runs.

    Attributes:
        forward: computes it.
        arguments: of the call.
        form: how they are taken apart.
        rows: each run's.
        parts: each run's arguments.
        splitter: takes the arguments of units inside apart.
        reuses_memory: the denoiser is compiled: its next call may overwrite what the last one returned.
        spent: what it takes.
    """

    forward: Callable[..., Any]
    arguments: Arguments
    form: Form
    rows: Sequence[Ranges]
    parts: Sequence[Arguments]
    splitter: Splitter
    reuses_memory: bool
    spent: Spent = field(default_factory=Spent)


class Together:
    """Carries out the calls of several runs, round after round, until all have their outputs.

    Args:
        call: the shared call.
        carried: each run's.
        finished: is told of each run that has its output.
    """

    def __init__(
        self, call: SharedCall, carried: Sequence[Carried], finished: Callable[[int], None] = lambda i: None
    ) -> None:
        self.call = call
        self.carried = carried
        self.finished = finished
        self._outputs: dict[int, Any] = {}

    def run(self) -> list[Any]:
        """The output of each run. After an error none of them goes on."""
        try:
            needs = self._answered(dict.fromkeys(range(len(self.carried))))
            while needs:
                votes = {i: need for i, need in needs.items() if isinstance(need, Vote)}
                if votes:
                    needs = {**needs, **self._answered(_settled(votes))}
                    needs = {i: need for i, need in needs.items() if i not in self._outputs}
                else:
                    computations = {i: need for i, need in needs.items() if isinstance(need, Computation)}
                    needs = self._answered(self._computed(computations))
            return [self._outputs[i] for i in range(len(self.carried))]
        finally:
            for one in self.carried:
                one.close()

    def _answered(self, answers: dict[int, Any]) -> dict[int, Need]:
        """Gives runs what they asked for; what they need next, those that are not done."""
        needs = {}
        for i, answer in answers.items():
            try:
                needs[i] = self.carried[i].send(answer)
            except StopIteration as end:
                self._outputs[i] = self._lasting(end.value)
                self.finished(i)
        return needs

    def _computed(self, computations: dict[int, Computation]) -> dict[int, Any]:
        """Computes what runs need: in one forward, where that can be split."""
        apart = {
            i: one
            for i, one in computations.items()
            if len(computations) == 1 or (self.call.splitter.units_apart and one.watcher is not None)
        }
        answers = {i: self._alone(i, one) for i, one in apart.items()}
        together = {i: one for i, one in computations.items() if i not in apart}
        return {**answers, **self._joined(together)} if together else answers

    def _alone(self, i: int, one: Computation) -> Any:
        rows = self.call.form.count((one.args, one.kwargs), count_of(self.call.rows[i]))
        return one.computed(self.call.spent.counting(self.call.forward, rows))

    def _joined(self, computations: dict[int, Computation]) -> dict[int, Any]:
        call, asked = self.call, list(computations.values())
        whole = len(asked) == len(call.parts) and all(
            one.args is part[0] and one.kwargs is part[1] for one, part in zip(asked, call.parts, strict=True)
        )
        if whole:  # as they came: nothing is copied
            arguments, form, rows = call.arguments, call.form, call.rows
        else:
            given = [(one.args, one.kwargs) for one in asked]
            counts = [
                call.form.count(one, count_of(call.rows[i]))
                for i, one in zip(computations, given, strict=True)
            ]
            arguments = call.form.joined(given, counts)
            form, rows = Form(sum(counts), call.form.has_rows, call.form.listed), consecutive(counts)
        output = self._forward(arguments, form, rows, asked)
        leaves = [form.flatten(arguments)[0]]
        leaves += [
            form.flatten((one.args, one.kwargs), count_of(own))[0]
            for one, own in zip(asked, rows, strict=True)
        ]
        return dict(zip(computations, divided(output, form, rows, leaves), strict=True))

    def _forward(
        self, arguments: Arguments, form: Form, rows: Sequence[Ranges], asked: Sequence[Computation]
    ) -> Any:
        tensors = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, Tensor)]
        before = [version_of(tensor) for tensor in tensors]
        watchers = [one.watcher for one in asked]
        units = JointUnits(watchers, rows, form.total, self.call.splitter)
        (args, kwargs), forward = arguments, self.call.spent.counting(self.call.forward, form.total)
        with watched(units) if any(watchers) else nullcontext():
            output = forward(*args, **kwargs)
        if before != [version_of(tensor) for tensor in tensors]:
            raise TargetError(WRITES)
        return output

    def _lasting(self, output: Any) -> Any:
        return pytree.tree_map_only(Tensor, Tensor.clone, output) if self.call.reuses_memory else output


def _settled(votes: dict[int, Vote]) -> dict[int, Any]:
    """The decisions of all runs, settled among processes by one collective."""
    joint = Vote(next(iter(votes.values())).agreement, [d for vote in votes.values() for d in vote.decisions])
    settled = iter(joint.settled())
    return {i: [next(settled) for _ in vote.decisions] for i, vote in votes.items()}
