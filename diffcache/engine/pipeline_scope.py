"""The scope of a pipeline call: its loops are observed at the noise scheduler."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from diffcache.config import CacheConfig
from diffcache.engine.engine import Engine
from diffcache.engine.runs import MakeEngine, Run
from diffcache.engine.scopes import Scope, noise_by
from diffcache.host.call import Call
from diffcache.host.components import has_autoencoder
from diffcache.host.guidance import guidance_scale_during, kept_scales_of
from diffcache.host.network_facts import NetworkFacts
from diffcache.noise_schedulers.quirks import asked_noise_option, sigmas_of
from diffcache.noise_schedulers.respacing import respace
from diffcache.noise_schedulers.timesteps import index_in_list
from diffcache.noise_schedulers.timetable import timetable_of
from diffcache.schedulers.guidance import UNTOLD, Guidance

REPLACED = "a callback has replaced the latents before {steps}: nothing is reused there, or corrected later"
REPLACED_ON = "a callback replaces the latents at every step: from step {step} on that counts as a part of the loop, and reuse goes on"

PART_OF_LOOP = 3
"""Latents that callbacks replace at so many steps in a row are replaced at all of them."""

NAMED = 4
"""So many steps are named in a note; of others it has the number."""


class PipelineScope(Scope):
    """One call of a pipeline.

    Args:
        config, denoisers, facts, make_engine: as for `Scope`.
        pipeline: asked for its number of timesteps.
        noise_schedulers: those whose steps are observed.
        call: the arguments of the call by name, as far as they are given.
        notes, guidance: see `Scope`.
    """

    def __init__(
        self,
        config: CacheConfig | None,
        denoisers: Mapping[str, nn.Module],
        pipeline: Any,
        noise_schedulers: Sequence[Any],
        *,
        call: Mapping[str, Any] | None = None,
        notes: Sequence[str] = (),
        guidance: Guidance = UNTOLD,
        facts: Mapping[str, NetworkFacts] | None = None,
        make_engine: MakeEngine = Engine,
    ) -> None:
        super().__init__(config, denoisers, facts=facts, make_engine=make_engine)
        self.notes, self.guidance, self.decodes = notes, guidance, has_autoencoder(pipeline)
        self.pipeline, self._arguments = pipeline, call or {}
        self.noise_schedulers = list(noise_schedulers)
        self.active = self.noise_schedulers[0] if noise_schedulers else None
        self._knows_its_loop = not noise_schedulers
        self._last_index: int | None = None
        # Of the loop, before the method gave it other noise levels.
        self._nominal_sigmas: list[float] | None = None
        self._scales_seen: dict[str, float] = {}
        self._replaced: list[int] = []  # ticks of this run before which callbacks have replaced the latents
        self._forgotten: list[int] = []  # those of them at which everything was forgotten

    def observes(self, noise_scheduler: object) -> bool:
        """Whether it is one of the pipeline's own. Copies that the pipeline has made do not count."""
        return any(noise_scheduler is known for known in self.noise_schedulers)

    def run_over(self, noise_scheduler: object) -> Run | None:
        """The run, if it goes over this noise scheduler. Pipelines of video with sound step a second one."""
        return self.run if noise_scheduler is self.active else None

    def timesteps_set(self, noise_scheduler: object) -> None:
        """Another loop begins: what the one before it stored is of no use to it.

        Raises:
            ScheduleError: the method has other noise levels for the run, and this noise scheduler cannot take them.
        """
        self.active, self._knows_its_loop = noise_scheduler, True
        nominal = sigmas_of(noise_scheduler) if self.config is not None else None
        levels = self.config.respaced(nominal) if self.config is not None and nominal is not None else None
        if levels is not None:
            respace(noise_scheduler, levels)
        self._nominal_sigmas = None if levels is None else nominal
        self._look_at(noise_scheduler)
        if self.run is not None and (self.run.tick or self.run.progress.called):
            self.end_run()

    def stepped(
        self, noise_scheduler: object, timestep: object, options: Mapping[str, Any], result: Any
    ) -> None:
        """The tick is over."""
        super().stepped(noise_scheduler, timestep, options, result)
        self._knows_its_loop = True
        if self.run is None:
            return
        self.run.progress.unsure = False
        if noise_scheduler is self.active and self.run.progress.called:
            index = index_in_list([timestep], noise_scheduler)
            if index is not None:
                self.run.timetable.begins_at(index - self.run.tick)
                self._last_index = index
        self.run.end_tick()

    def latents_replaced(self) -> None:
        """A callback has replaced the latents, or written to them: what was stored of the old ones is of no use.

        Callbacks that do so at `PART_OF_LOOP` steps in a row are taken for a part of the loop, as the blending of an inpainting pipeline is.
        """
        if self.run is None or self.run.progress.over or self.run.tick in self._replaced[-1:]:
            return
        tick, notes = self.run.tick, self.run.record.notes
        self._replaced.append(tick)
        if self._replaced[-PART_OF_LOOP:] != [*range(tick + 1 - PART_OF_LOOP, tick + 1)]:
            self.run.forget()
            before, self._forgotten = self._forgotten, [*self._forgotten, tick]
            if before:
                notes.remove(_replaced_before(before))
            notes.append(_replaced_before(self._forgotten))
        elif not any(note.startswith(REPLACED_ON.partition("{")[0]) for note in notes):
            notes.append(REPLACED_ON.format(step=tick))

    def run_of(self, call: Call) -> Run:
        """The run that a call belongs to. It begins one where none is on, or where the timesteps begin anew.

        The tick is read from the timestep argument: most pipelines hand the denoiser a view into the noise scheduler's list.
        """
        run = self.run if self.run is not None and not self.run.progress.over else self._begin()
        if not run.progress.called:
            self._note_guidance(run)
        index = index_in_list(call.tensors.values(), self.active)
        if index is None:
            return run
        if self._last_index is not None and not run.progress.called:
            if index < self._last_index:  # the timesteps begin anew: another loop
                run = self._begin()
            elif index == self._last_index:
                run.progress.lost = True
        if not run.progress.called:
            run.progress.timetable.begins_at(index - run.progress.tick)
        return run

    def _look_at(self, noise_scheduler: Any) -> None:
        super()._look_at(noise_scheduler)
        option = asked_noise_option(noise_scheduler, self._arguments)
        if option is not None:
            self.fresh_noise = noise_by(noise_scheduler, option)
            if self.influence is not None:
                self.influence.obstacle = self.fresh_noise.obstacle

    def close(self) -> None:
        super().close()
        self.pipeline, self.active, self.noise_schedulers = None, None, []

    def _note_guidance(self, run: Run) -> None:
        """What hindsight corrects later, and the plans of some methods, presume that guidance weighs outputs as it did."""
        counts = self.config is not None and self.config.counts_guidance
        if self.influence is None and not counts:
            return
        guidance = kept_scales_of(self.pipeline)
        if guidance != self._scales_seen:
            run.timetable.guidance_changes(run.tick)
            if run.tick > 0:
                run.scales_seen.add(guidance_scale_during(self.pipeline))
        self._scales_seen = guidance

    def _begin(self) -> Run:
        self._last_index, self._replaced, self._forgotten = None, [], []
        if self.guidance.scale is None:
            self.guidance = replace(self.guidance, scale=guidance_scale_during(self.pipeline))
        ticks = getattr(self.pipeline, "num_timesteps", None)
        end = self._arguments.get("denoising_end")
        run = self.begin_run(timetable_of(self.active, ticks, self.influence, end), hand_written=False)
        run.record.nominal_sigmas = self._nominal_sigmas
        run.progress.unsure = not self._knows_its_loop
        return run


def _replaced_before(ticks: Sequence[int]) -> str:
    """The note on latents that callbacks have replaced before these ticks."""
    named, more = ", ".join(map(str, ticks[:NAMED])), len(ticks) - NAMED
    steps = f"step {named}" if len(ticks) == 1 else f"steps {named}"
    return REPLACED.format(steps=f"{steps} and {more} more" if more > 0 else steps)
