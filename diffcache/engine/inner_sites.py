"""Sites inside a denoiser: its forward runs, and the units that a site spans are computed and stored, or skipped."""

from collections.abc import Generator, Iterator
from typing import Any

from torch import Tensor

from diffcache.engine.branch import Branch
from diffcache.engine.execution import Carried, Computation, Invocation, Need, Parts
from diffcache.engine.first_pass import compute_first_pass
from diffcache.engine.learned import Form, form_of, recall, remember
from diffcache.engine.observers import NOBODY
from diffcache.engine.site_pass import SitePass
from diffcache.host.argument_lists import ArgumentLists
from diffcache.host.call import Call
from diffcache.reports.records import Done
from diffcache.schedulers.errors import TargetError
from diffcache.schedulers.steps import Decision, Step, Verdict

STRAYED = (
    "the denoiser called its blocks in another order than before, or used more of what is inside the site"
)


class InnerSites:
    """Executes verdicts at sites inside one denoiser.

    Args:
        parts: what it works with.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.name = parts.choices.facts.denoiser
        self.decider = parts.decider
        self.record = parts.record

    def close(self) -> None:
        """Keeps nothing outside stores."""

    def tensors(self) -> Iterator[Tensor]:
        """Keeps nothing outside stores."""
        return iter(())

    def run(self, asked: Invocation, step: Step, branch: Branch, lanes: int) -> Carried:
        """One denoiser call: decides at each site that the forward reaches. One whose reuse is rejected is made again."""
        form = form_of(asked, self.parts.choices, branch) if branch.cuts is None else None
        extra = 0.0
        if form is not None and not self._recalls(asked, form, branch):
            output, done = self._learn(asked, form, step, branch)
        else:
            assert branch.cuts is not None
            given = ArgumentLists((asked.call.args, asked.call.kwargs))
            this = SitePass(self.parts, asked.call, step, branch, branch.cuts, is_first=form is not None)
            output = yield from _forward(asked, this)
            this.returned(output)
            extra = this.extra
            if this.rejected and not this.went_astray:
                extra += 1 - branch.cuts.share
                given.put_back()
                this = SitePass(self.parts, asked.call, step, branch, branch.cuts, is_first=False)
                output = yield from _forward(asked, this)
            done = [Done(visit.step, visit.verdicts, visit.site.share) for visit in this.reached]
            for site in this.missed:
                at = step._replace(site=site.name, kind=site.kind)
                done.append(Done(at, [Verdict(Decision.COMPUTE, STRAYED)], site.share))
            if this.went_astray:
                extra += 1 - sum(visit.left_out for visit in this.reached)
                output, done = yield from self._made_again(asked, step, branch, given, done)
        branch.changed = False
        self.write_down(asked.call, step, branch, done, extra)
        return output

    def _made_again(
        self, asked: Invocation, step: Step, branch: Branch, given: ArgumentLists, done: list[Done]
    ) -> Generator[Need, Any, tuple[Any, list[Done]]]:
        """A call that went astray is computed as a branch's first. `done` is what it did at sites."""
        cuts = branch.cuts
        branch.empty()
        if branch is self.decider.leader:
            self.decider.forget()  # what it has measured in this call it measures again
        given.put_back()
        try:
            output, done = self._learn(asked, form_of(asked, self.parts.choices, branch), step, branch)
        except TargetError:  # this call has no such sites, others have
            given.put_back()
            output = yield Computation(asked.call.args, asked.call.kwargs)
            branch.cuts = cuts
        return output, [each._replace(verdicts=[Verdict(Decision.COMPUTE, STRAYED)]) for each in done]

    def _recalls(self, asked: Invocation, form: Form, branch: Branch) -> bool:
        """Whether an earlier call of this form has taught where the denoiser can be cut. Observers see every first call."""
        return self.decider.observer is NOBODY and recall(asked, form, branch)

    def _learn(self, asked: Invocation, form: Form, step: Step, branch: Branch) -> tuple[Any, list[Done]]:
        """Traces a call to find the sites, and keeps what it teaches with the denoiser."""
        output, done = compute_first_pass(self.parts, asked, step, branch)
        remember(asked, form, branch)
        return output, done

    def write_down(
        self, call: Call, step: Step, branch: Branch, done: list[Done], extra: float = 0.0
    ) -> None:
        """Records what was done at the sites, and that what lies beside them was computed. `extra` is as in `Done`."""
        assert branch.cuts is not None
        beside = Done(step, [Verdict(Decision.COMPUTE)], 1 - branch.cuts.share, cached=False, extra=extra)
        self.record.add(self.name, call.batch, [beside, *done])


def _forward(asked: Invocation, this: SitePass) -> Carried:
    """What the denoiser returns while its units are watched."""
    try:
        return (yield Computation(asked.call.args, asked.call.kwargs, watcher=this))
    except BaseException:
        this.drop()  # whoever keeps the traceback would keep it
        raise
