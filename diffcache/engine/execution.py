"""What executes a decision: the contract that the whole denoiser and the sites inside it share."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from diffcache.engine.branches import Branch
from diffcache.engine.choices import Choices
from diffcache.engine.decider import Decider
from diffcache.host.call import Call
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
    """

    module: nn.Module
    forward: Callable[..., Any]
    call: Call
    context: str | None = None
    reuses_memory: bool = False


@dataclass(frozen=True, slots=True)
class Parts:
    """What an execution works with.

    Attributes:
        choices: the method's.
        decider: decides.
        record: where every call is written down.
    """

    choices: Choices
    decider: Decider
    record: RunRecord


class Execution(Protocol):
    """Executes the decider's verdicts on the calls of one denoiser in one run."""

    def run(self, asked: Invocation, step: Step, branch: Branch, lanes: int) -> Any:
        """One denoiser call of a branch: what the denoiser returns, computed or predicted.

        Args:
            step: of the whole denoiser.
            lanes: how many there are in this call.
        """

    def tensors(self) -> Iterator[Tensor]:
        """What it keeps outside stores."""

    def close(self) -> None:
        """The run is over: drops every tensor."""
