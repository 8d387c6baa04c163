"""The scope of a hand-written loop, which says itself when each step begins."""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from diffcache.config import CacheConfig
from diffcache.engine.engine import Engine
from diffcache.engine.runs import MakeEngine, Run
from diffcache.engine.scopes import Scope, bring_to_front
from diffcache.host.call import Call
from diffcache.host.network_facts import NetworkFacts
from diffcache.noise_schedulers.levels import Level
from diffcache.noise_schedulers.quirks import noise_option
from diffcache.noise_schedulers.timesteps import first_of
from diffcache.noise_schedulers.timetable import Timetable
from diffcache.reports.records import RunRecord
from diffcache.schedulers.errors import DiffcacheError


class LoopScope(Scope):
    """One hand-written loop (`denoising_run`): the calls after `begin_step` are the guidance passes of that tick.

    Args:
        config, denoisers, facts, make_engine: as for `Scope`.
        num_steps: how many ticks it has.
        levels: what is known of each; empty where nothing is.
        noise_scheduler: that the loop steps with; None where unknown.
        shows_steps: its steps are observed.
    """

    hides = False

    def __init__(
        self,
        config: CacheConfig | None,
        denoisers: Mapping[str, nn.Module],
        num_steps: int,
        levels: Sequence[Level] = (),
        noise_scheduler: Any = None,
        *,
        shows_steps: bool = True,
        facts: Mapping[str, NetworkFacts] | None = None,
        make_engine: MakeEngine = Engine,
    ) -> None:
        super().__init__(config, denoisers, facts=facts, make_engine=make_engine)
        self._look_at(noise_scheduler)
        if self.influence is not None and (option := noise_option(noise_scheduler, {})) is not None:
            name = type(noise_scheduler).__name__
            self.influence.obstacle = (
                f"{name} adds noise at its steps unless {option}=0, which this loop does not tell"
            )
        self.num_steps = num_steps
        self.levels = levels
        self.first = first_of(noise_scheduler, num_steps)
        self.asked = getattr(noise_scheduler, "num_inference_steps", None)
        self._noise_scheduler = noise_scheduler
        self._shows_steps = shows_steps and noise_scheduler is not None
        self._called_before_begin = False
        self._closed = False

    def begin_step(self, i: int) -> None:
        """Step `i` (0 to num_steps - 1) begins. Call it once for each step, before all denoiser calls of the step.

        Going back begins another run. If the step has begun already and the denoiser was called in it, that may be another
        sample or the same loop once more: nothing tells which, so everything is computed from then on.

        Raises:
            ValueError: `i` is not a step of this loop, or the loop's `with` block is over.
        """
        i = self.checked(i)
        bring_to_front(self)
        run = self.run
        again = run is not None and run.tick == i
        if again and run is not None and not run.progress.called:
            return
        if run is None or run.tick >= i:
            named = self._noise_scheduler
            timetable = Timetable(
                self.num_steps,
                self.levels,
                influence=self.influence,
                first=self.first,
                asked=self.asked,
                noise_scheduler=None if named is None else type(named).__name__,
            )
            run = self.begin_run(timetable, hand_written=True)
            run.progress.lost = again and self.num_steps > 1
            run.progress.shows_steps = self._shows_steps
        run.begin_tick(i)

    def checked(self, i: Any) -> int:
        """A step of this loop as a number.

        Raises:
            ValueError: it is none, or the loop is over.
        """
        if self._closed:
            raise DiffcacheError(
                f"begin_step({i}): this denoising_run is over: call it inside the with block."
            )
        try:
            step = operator.index(i)
        except TypeError:
            step = -1
        if not 0 <= step < self.num_steps:
            raise DiffcacheError(
                f"begin_step({i!r}): this run has steps 0 to {self.num_steps - 1}: pass the step's index, and set num_steps."
            )
        return step

    def observes(self, noise_scheduler: object) -> bool:
        """The loop's own."""
        return noise_scheduler is self._noise_scheduler

    def run_of(self, call: Call) -> Run | None:
        if self.run is None:
            self._called_before_begin = True
        return self.run

    def close(self) -> None:
        if self._called_before_begin and not self.records:
            self.records.append(RunRecord())
        self._closed, self._noise_scheduler = True, None
        super().close()
