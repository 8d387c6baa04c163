"""What executes a decision: the contract that the whole denoiser and the sites inside it share.

An execution is a generator. It yields what it needs (`Need`) and is sent the answer, so that several runs can be served by
one forward: `carried_out` serves one run by itself, `diffcache.server` serves many at once.
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from diffcache.engine.branch import Branch
from diffcache.engine.choices import Choices
from diffcache.engine.decider import Decider
from diffcache.engine.vote import Vote
from diffcache.hooks.watcher import Watcher, watched
from diffcache.host.call import Call
from diffcache.host.network_facts import NetworkFacts
from diffcache.reports.records import RunRecord
from diffcache.schedulers.steps import Step


@dataclass(slots=True)
class Invocation:
    """One call of a denoiser, as its loop makes it.

    Attributes:
        module: the denoiser.
        forward: computes it.
        call: its arguments.
        context: the guidance pass's name, where the pipeline gives one.
        reuses_memory: it is compiled or holds a compiled module, whose next call may overwrite what the last one returned.
        network: what is known of the denoiser's modules and parameters, when its loop began.
    """

    module: nn.Module
    forward: Callable[..., Any]
    call: Call
    context: str | None
    reuses_memory: bool
    network: NetworkFacts

    def lasting(self, output: Any) -> Any:
        """An output that is still the same when the denoiser has been called again: a copy, where that may overwrite it."""
        return pytree.tree_map_only(Tensor, torch.clone, output) if self.reuses_memory else output


@dataclass(frozen=True, slots=True)
class Parts:
    """What an execution works with.

    Attributes:
        decider: decides.
        record: where every call is written down.
    """

    decider: Decider
    record: RunRecord

    @property
    def choices(self) -> Choices:
        """The method's, by which it is decided now."""
        return self.decider.choices


CarriedUnit = Generator[bool, Any, Any]
"""The call of a unit as one run sees it. If the unit is to be computed it yields whether the run looks at what it returns, and is
sent that."""


class SiteWatcher(Watcher, Protocol):
    """Watches units for one run, alone or beside others whose rows are in the same forward."""

    def unit_call(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> CarriedUnit:
        """The call of a unit; it returns what the unit gives, computed or not."""

    def passes_by(self, module: nn.Module) -> bool:
        """The call of a unit that is to be computed, and whose arguments are not known; False if the run needs them."""

    def stray(self) -> None:
        """What this forward returns is worth nothing: the run computes the call again by itself."""


@dataclass(frozen=True, slots=True)
class Computation:
    """A call of the denoiser that has to be computed.

    Attributes:
        args, kwargs: what it is called with: all rows of a run's call, or some of them.
        watcher: sees the calls of units inside; None where nobody looks.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    watcher: SiteWatcher | None = None

    def computed(self, forward: Callable[..., Any]) -> Any:
        """What the denoiser returns, computed alone."""
        if self.watcher is None:
            return forward(*self.args, **self.kwargs)
        with watched(self.watcher):
            return forward(*self.args, **self.kwargs)


Need = Computation | Vote
"""A call to compute, or a vote to settle among processes."""

Carried = Generator[Need, Any, Any]
"""A denoiser call as it is carried out: yields what it needs, is sent the answers, returns the denoiser's output."""


def carried_out(call: Carried, forward: Callable[..., Any]) -> Any:
    """The output of a call of one run, whose needs are met one by one."""
    try:
        need = next(call)
        while True:
            answer = need.settled() if isinstance(need, Vote) else need.computed(forward)
            need = call.send(answer)
    except StopIteration as end:
        return end.value
    finally:
        call.close()  # after an error: a traceback that somebody keeps would keep the call open


class Execution(Protocol):
    """Executes the decider's verdicts on the calls of one denoiser in one run."""

    def run(self, asked: Invocation, step: Step, branch: Branch, lanes: int) -> Carried:
        """One denoiser call of a branch; it returns what the denoiser returns, computed or predicted.

        Args:
            step: of the whole denoiser.
            lanes: how many there are in this call.
        """

    def tensors(self) -> Iterator[Tensor]:
        """What it keeps outside stores."""

    def close(self) -> None:
        """The run is over: drops every tensor."""
