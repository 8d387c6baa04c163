"""Runs: one denoising loop, and everything cached that belongs to it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from typing import Any

from diffcache.config import CPU, CacheConfig, RunFacts
from diffcache.discovery.units import block_counts
from diffcache.engine.branches import FORGET_AFTER
from diffcache.engine.choices import choices_of
from diffcache.engine.engine import Engine
from diffcache.engine.guidance_watch import GuidanceWatch
from diffcache.engine.progress import Progress
from diffcache.engine.scales_seen import ScalesSeen
from diffcache.engine.served import Served
from diffcache.engine.step_correction import StepCorrection
from diffcache.host.call import Call
from diffcache.host.components import is_control_network
from diffcache.host.identity import model_of
from diffcache.host.parallel import agreement_of
from diffcache.host.rows import conditional_first
from diffcache.noise_schedulers.quirks import noise_option
from diffcache.noise_schedulers.step_calls import StepCall, step_call_of
from diffcache.noise_schedulers.timetable import Timetable
from diffcache.reports.records import RunRecord
from diffcache.schedulers.guidance import Guidance

UNNAMED = "no noise scheduler is known: name it, denoising_run(..., noise_scheduler=)"

MakeEngine = Callable[..., Engine]


class Run:
    """One denoising loop. It owns the engines, and so every cached tensor; closed, it owns nothing.

    Args:
        timetable: its ticks and noise levels.
        make_engine: what makes an engine.
        hand_written: see `Progress`.
        guidance: of the call.
        decodes: see `RunFacts`.
        notes: for its record.

    Attributes:
        progress: where it stands.
        record: what happened.
        engines: by identity of the denoiser.
        scales_seen: of guidance.
    """

    def __init__(
        self,
        timetable: Timetable,
        make_engine: MakeEngine,
        *,
        hand_written: bool,
        guidance: Guidance,
        decodes: bool,
        notes: Sequence[str],
    ) -> None:
        self.progress = Progress(timetable, hand_written=hand_written)
        self.record = RunRecord(noise_scheduler=timetable.noise_scheduler, notes=list(notes))
        self.engines: dict[int, Engine] = {}
        self._make_engine = make_engine
        self._guidance, self._decodes = guidance, decodes
        self._guidance_watch: GuidanceWatch | None = None
        self.scales_seen = ScalesSeen()
        self._wants_hindsight = False
        self._step_correctors: list[Engine] = []  # engines that correct in the noise scheduler's steps
        self._note_length()

    @property
    def timetable(self) -> Timetable:
        return self.progress.timetable

    @property
    def tick(self) -> int:
        return self.progress.tick

    def begin_engine(self, served: Served, config: CacheConfig, call: Call) -> Engine:
        """Makes the engine of a denoiser, at its first call."""
        facts, agreement = self._facts(served, call), agreement_of(served.module)
        engine = self._make_engine(choices_of(config, facts), self.record, self.progress, agreement)
        record, name = self.record, served.name
        record.parameters[name] = served.network.parameters
        record.models[name] = replace(model_of(served.module), latents=facts.latents)
        if facts.quantization is not None:
            record.quantization[name] = facts.quantization
        self.scales_seen.counts_for(config)
        is_alone = agreement is None and not self.engines
        self._guidance_watch = None
        if is_alone and GuidanceWatch.is_needed(config, self._guidance):
            doubled = self._is_doubled(engine, served, call)
            in_order = conditional_first(served.module)
            self._guidance_watch = GuidanceWatch(engine, config, facts, doubled, in_order)
        self._write_down(engine, config, facts)
        if engine.step_corrections:
            self._step_correctors.append(engine)
        if len(self._step_correctors) > 1:
            # Denoisers that take turns: no correction in the steps knows all of them, so each pass is corrected by itself from here on.
            for correction in chain.from_iterable(one.step_corrections for one in self._step_correctors):
                correction.forget()
        self._wants_hindsight |= engine.setup.hindsight
        self.engines[id(served.module)] = engine
        return engine

    def begin_tick(self, tick: int) -> None:
        """A hand-written loop says that this tick begins."""
        watch = self._guidance_watch
        if watch is not None and tick != self.tick and not watch.sees_steps:
            self._choose_anew(watch, watch.without_steps(tick))
        self.progress.tick = tick
        self.progress.called = False
        self.record.observed = True

    def stepping(
        self, noise_scheduler: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> StepCall | None:
        """The noise scheduler is about to step with these arguments. Returns the call that is to be made instead; None: this one."""
        watch = self._guidance_watch
        if not self._step_corrections and watch is None:
            return None
        call = step_call_of(noise_scheduler, args, kwargs)
        if watch is not None:
            self._choose_anew(watch, watch.stepping(noise_scheduler, call))
        corrections = self._step_corrections
        if not corrections:
            return None
        called = self.record.calls_at(self.tick)
        adds_noise = noise_option(noise_scheduler, kwargs) is not None
        is_whole = called.are_computed or called.are_reused
        if call is None or adds_noise or not self.progress.called or not is_whole:
            for correction in corrections:
                correction.forget()
            return None
        for correction in corrections:
            call = correction.stepping(noise_scheduler, self.tick, call, called)
        return call

    def stepped(self, result: Any) -> None:
        """The noise scheduler has stepped, and has returned this."""
        for correction in self._step_corrections:
            correction.stepped(result[0])

    def end_tick(self) -> None:
        """The noise scheduler has stepped. Steps without a denoiser call between them end one tick, not several."""
        progress, ticks = self.progress, self.timetable.num_ticks
        if not progress.called:
            return
        progress.tick += 1
        progress.called = False
        progress.over = ticks is not None and progress.tick >= ticks
        self.record.observed = True
        self._drop_idle()

    def forget(self) -> None:
        """Drops what is stored: the tick that comes is computed."""
        for engine in self.engines.values():
            engine.forget()

    def close(self) -> None:
        """Drops every tensor, and completes the record."""
        # All are closed, whatever one of them raises. They run in reverse: what is added last is closed first.
        with ExitStack() as stack:
            stack.callback(self._step_correctors.clear)
            stack.callback(self.engines.clear)
            for engine in reversed(self.engines.values()):
                stack.callback(engine.close)
            watch, self._guidance_watch = self._guidance_watch, None
            shown = [] if watch is None else watch.later_scales()
            # First: where the scale has changed, engines that close give no expected error.
            self.scales_seen.note(self.record, self._guidance.scale, shown)
            self._note_length()
            obstacle = self._obstacle_of_hindsight()
            if obstacle is not None:
                self.record.notes.append(f"no hindsight: {obstacle}")

    @property
    def _step_corrections(self) -> Sequence[StepCorrection]:
        """What corrects in the noise scheduler's steps, where one denoiser serves the whole run."""
        return self._step_correctors[0].step_corrections if len(self._step_correctors) == 1 else ()

    def _obstacle_of_hindsight(self) -> str | None:
        """Why reused ticks were not corrected."""
        if not self._wants_hindsight:
            return None
        if self.timetable.influence is None and self.record.observed:
            return UNNAMED
        told = [correction for correction in self._step_corrections if correction.has_seen_steps]
        if told and self.record.fresh_noise is None:
            return told[0].obstacle
        return None if self.timetable.influence is None else self.timetable.influence.obstacle

    def _is_doubled(self, engine: Engine, served: Served, call: Call) -> bool:
        """Whether the first call of a hand-written loop holds two guidance passes, or two pictures of one seed."""
        doubled = engine.batched_guidance
        return self.progress.hand_written and doubled.found_in(served.module, call, self.tick, None)

    def _choose_anew(self, watch: GuidanceWatch, guidance: Guidance | None) -> None:
        """More is known of guidance, if it is not None: with it the method chooses again."""
        if watch.is_over:
            self._guidance_watch = None
        if guidance is None:
            return
        self._guidance, self.record.amplification = guidance, guidance.shown
        clipped = self.timetable.run_clipped_influence(self._guidance.counted)
        watch.facts = replace(watch.facts, guidance=self._guidance, clipped_influence=clipped)
        watch.engine.choose_anew(choices_of(watch.config, watch.facts))
        self._step_correctors = [watch.engine] if watch.engine.step_corrections else []
        self.record.corrections = {}
        self._write_down(watch.engine, watch.config, watch.facts)

    def _write_down(self, engine: Engine, config: CacheConfig, facts: RunFacts) -> None:
        """What the method has chosen."""
        self.record.predictor = engine.describe()
        self.record.corrections |= config.corrections(facts)
        remark = config.remark(facts)
        self.record.remarks.pop(engine.name, None)
        if remark is not None:
            self.record.remarks[engine.name] = remark

    def _facts(self, served: Served, call: Call) -> RunFacts:
        module, timetable = served.module, self.timetable
        sigmas = timetable.run_sigmas()
        return RunFacts(
            denoiser_class=type(module).__name__,
            experts=served.experts,
            num_ticks=timetable.num_ticks,
            asked=timetable.asked,
            denoiser=served.name,
            sigmas=None if sigmas is None else tuple(sigmas),
            moments=tuple(timetable.moments),
            influence=timetable.run_influence(),
            clipped_influence=timetable.run_clipped_influence(self._guidance.counted),
            noise_scheduler=timetable.noise_scheduler,
            adds_noise=self.record.fresh_noise is not None,
            guidance=self._guidance,
            blocks=block_counts(module),
            latents=tuple(tuple(x.shape[1:] if call.batched else x.shape) for x in call.latents),
            device=call.latents[0].device if call.latents else CPU,
            quantization=served.network.quantization,
            decodes=self._decodes,
            evolves=not is_control_network(module),
        )

    def _note_length(self) -> None:
        self.record.num_ticks = self.timetable.num_ticks
        self.record.sigmas = self.timetable.run_sigmas()

    def _drop_idle(self) -> None:
        """Frees what a denoiser stored that is no longer called (the first of two experts, after the hand-over)."""
        oldest = self.progress.tick - 1 - FORGET_AFTER
        for key in [key for key, engine in self.engines.items() if engine.branches.tick < oldest]:
            engine = self.engines.pop(key)
            engine.close()
            self.record.held.pop(engine.name, None)
