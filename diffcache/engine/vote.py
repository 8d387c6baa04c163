"""Votes: how processes that compute one denoiser together come to the same decisions."""

from collections.abc import Generator
from dataclasses import dataclass

from diffcache.host.parallel import Agreement
from diffcache.schedulers.steps import Decision, Verdict

OUTVOTED = "another process that computes the denoiser with this one decided so"


@dataclass(frozen=True, slots=True)
class Vote:
    """What this process would do with each lane, to be settled among the processes that compute the denoiser together.

    Attributes:
        agreement: among them.
        decisions: this process's.
    """

    agreement: Agreement
    decisions: list[Decision]

    def settled(self) -> list[Decision]:
        """What all processes do. Costs one collective."""
        return self.agreement.settle(self.decisions)


def settled(agreement: Agreement, verdicts: list[Verdict]) -> Generator[Vote, list[Decision], list[Verdict]]:
    """What all processes do."""
    decided = yield Vote(agreement, [verdict.decision for verdict in verdicts])
    return [
        verdict
        if verdict.decision is decision
        else Verdict(decision, OUTVOTED if decision.computes else None)
        for verdict, decision in zip(verdicts, decided, strict=True)
    ]
