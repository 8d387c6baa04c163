"""Runs: one denoising loop, and everything cached that belongs to it."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch import nn

from diffcache.config import CPU, CacheConfig, RunFacts
from diffcache.discovery.units import block_counts
from diffcache.engine.branches import FORGET_AFTER
from diffcache.engine.engine import Engine
from diffcache.host.call import Call
from diffcache.host.components import is_control_network
from diffcache.host.identity import model_of
from diffcache.host.parallel import agreement_of
from diffcache.host.rows import counts_rows
from diffcache.host.weight_formats import quantization_of
from diffcache.noise_schedulers.timetable import Timetable, Turn
from diffcache.reports.records import RunRecord

UNNAMED = "no noise scheduler is known: name it, denoising_run(..., noise_scheduler=)"


@dataclass(slots=True)
class Run:
    """One denoising loop. It owns the engines, and so every cached tensor; closed, it owns nothing.

    Attributes:
        timetable: its ticks and noise levels.
        make: what makes an engine.
        tick: the current tick.
        called: a denoiser has been called in this tick.
        lost: several samples are stepped one after another at each step (panoramas): nothing can be reused.
    """

    timetable: Timetable
    make: Callable[..., Engine] = Engine
    tick: int = 0
    called: bool = False
    lost: bool = False
    record: RunRecord = field(default_factory=RunRecord)
    engines: dict[int, Engine] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.record.num_ticks = self.timetable.num_ticks
        self.record.sigmas = self.timetable.of_run()
        self.record.noise_scheduler = self.timetable.noise_scheduler

    def engine(self, module: nn.Module, config: CacheConfig, site: str, experts: int, call: Call) -> Engine:
        """The engine of a denoiser, made at its first call."""
        if id(module) not in self.engines:
            sigmas = self.timetable.of_run()
            facts = RunFacts(
                denoiser=type(module).__name__,
                experts=experts,
                num_ticks=self.timetable.num_ticks,
                site=site,
                sigmas=None if sigmas is None else tuple(sigmas),
                noise_scheduler=self.timetable.noise_scheduler,
                blocks=block_counts(module),
                latents=tuple(tuple(x.shape[1:] if call.batched else x.shape) for x in call.latents),
                device=call.latents[0].device if call.latents else CPU,
                quantization=quantization_of(module),
                evolves=not is_control_network(module),
            )
            separable, agreement = not counts_rows(module), agreement_of(module)
            engine = self.make(site, config, facts, self.record, separable=separable, agreement=agreement)
            self.record.parameters[site] = sum(p.numel() for p in module.parameters())
            self.record.models[site] = replace(model_of(module), latents=facts.latents)
            if facts.quantization is not None:
                self.record.quantization[site] = facts.quantization
            self.record.predictor = {
                **engine.planner.predictor.describe(),
                "basis": "residual" if config.residual else "output",
                **({} if config.storage is None else {"cache_dtype": config.storage}),
                **({"hindsight": True} if engine.planner.looks_back else {}),
            }
            if engine.planner.looks_back and self.timetable.influence is None:
                self.record.notes.append(f"no hindsight: {UNNAMED}")
            if engine.guidance is not None:
                self.record.predictor["guidance"] = engine.guidance.rule.describe()
            self.engines[id(module)] = engine
        return self.engines[id(module)]

    def turn(self, context: str | None, *, by_order: bool) -> Turn:
        """Where a call that arrives now stands."""
        self.called = True
        return Turn(self.tick, self.timetable, context, by_order, self.lost)

    def end_tick(self) -> None:
        """The noise scheduler has stepped. Steps without a denoiser call between them end one tick, not several."""
        if self.called:
            self.tick += 1
            self.called = False
            self.record.observed = True
            self._drop_idle()

    @property
    def over(self) -> bool:
        """All ticks are done: a further call belongs to another loop."""
        return self.timetable.num_ticks is not None and self.tick >= self.timetable.num_ticks

    def _drop_idle(self) -> None:
        """Frees what a denoiser stored that is no longer called (the first of two experts, after the hand-over)."""
        idle = [
            key for key, engine in self.engines.items() if engine.branches.tick < self.tick - 1 - FORGET_AFTER
        ]
        for key in idle:
            engine = self.engines.pop(key)
            engine.close()
            self.record.held.pop(engine.name, None)

    def close(self) -> None:
        self.record.num_ticks = self.timetable.num_ticks
        self.record.sigmas = self.timetable.of_run()
        if self.timetable.influence is not None and self.timetable.influence.obstacle is not None:
            self.record.notes.append(f"no hindsight: {self.timetable.influence.obstacle}")
        for engine in self.engines.values():
            engine.close()
        self.engines.clear()
