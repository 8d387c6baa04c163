"""The stage: a target's own loop, run for a rehearsal and left as it was."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from diffcache.attach.overrides import denoiser_members, noise_scheduler_members
from diffcache.attach.requirements import units_of
from diffcache.config import CacheConfig
from diffcache.discovery.units import unit_members
from diffcache.engine.observers import NOBODY, observed
from diffcache.engine.scopes import LoopScope, PipelineScope, Scope, entered
from diffcache.hooks.class_swap import base_class, swapped
from diffcache.host.compiled import each_uncompiled, uncompiled
from diffcache.host.components import denoisers_of, noise_schedulers_of, refuse_foreign_cache
from diffcache.planning.footprint import Holdings, held_by
from diffcache.planning.meta_engine import RehearsalEngine
from diffcache.planning.recorded_calls import Takes
from diffcache.reports.records import RunRecord
from diffcache.schedulers.errors import TargetError


class Over(BaseException):
    """The rehearsed run has had its last tick: what the loop does afterwards is of no interest."""


class Rehearsal:
    """What a rehearsal showed.

    Attributes:
        records: of its runs.
        engines: closed, all of them.
        fullest: what was held when most was held.
        others: most bytes that were held outside stores.
        contexts: names that the loop gave to passes.
    """

    def __init__(self) -> None:
        self.records: list[RunRecord] = []
        self.engines: list[RehearsalEngine] = []
        self.fullest = Holdings()
        self.others = 0
        self.contexts: set[str] = set()


class _Rehearsing(Scope):
    """Makes a scope's engines rehearse, and notes what they hold."""

    def rehearse(self) -> Rehearsal:
        self.shown = Rehearsal()
        self.make_engine = partial(self._engine, Takes())
        return self.shown

    def _engine(self, takes: Takes, *args: Any, **kwargs: Any) -> RehearsalEngine:
        engine = RehearsalEngine(takes, self._note, *args, **kwargs)
        self.shown.engines.append(engine)
        return engine

    def _note(self) -> None:
        assert self.run is not None
        held = held_by(self.run.engines.values())
        self.shown.others = max(self.shown.others, held.others)
        self.shown.fullest = max(self.shown.fullest, held, key=lambda one: one.bytes_in(None))
        if self.context is not None:
            self.shown.contexts.add(self.context)

    def close(self) -> None:
        super().close()
        self.shown.records = self.records


class _PipelineStage(_Rehearsing, PipelineScope):
    def stepped(self, noise_scheduler: object, timestep: object) -> None:
        super().stepped(noise_scheduler, timestep)
        if self.run is not None and self.run.over:
            raise Over

    def _begin(self) -> None:
        if self.records:
            raise Over
        super()._begin()


class _LoopStage(_Rehearsing, LoopScope):
    pass


def rehearse(
    target: Any, config: CacheConfig, call: Mapping[str, Any], components: Collection[str] | None = None
) -> Rehearsal:
    """Rehearses the first denoising loop of a call.

    Args:
        target: a pipeline, or a denoiser.
        config: the method.
        call: the pipeline's keyword arguments; of a denoiser, those of its forward, and `num_steps`.
        components: the pipeline's denoisers that are meant; None for all.

    Raises:
        TargetError: there is no denoiser, it is cached by somebody else, or `num_steps` is missing.
    """
    denoisers = denoisers_of(target, components)
    for module in denoisers.values():
        refuse_foreign_cache(module)
    plain = each_uncompiled(denoisers)
    is_loop = isinstance(target, nn.Module)
    noise_schedulers = [] if is_loop else noise_schedulers_of(target)
    with ExitStack() as stack:
        stack.enter_context(swapped([*denoisers.values(), *plain.values()], denoiser_members))
        stack.enter_context(swapped(units_of(denoisers, config), unit_members))
        stack.enter_context(swapped(noise_schedulers, noise_scheduler_members))
        stack.enter_context(_undisturbed(target, call, list(plain.values())))
        stack.enter_context(observed(NOBODY))
        if is_loop:
            return _loop(target, config, dict(call))
        scope = _PipelineStage(config, plain, target, noise_schedulers)
        shown = scope.rehearse()
        with entered(scope), suppress(Over):
            base_class(type(target)).__call__(target, **_without_callbacks(call))
        return shown


def _loop(net: nn.Module, config: CacheConfig, call: dict[str, Any]) -> Rehearsal:
    if "num_steps" not in call:
        raise TargetError(
            "a denoiser's loop is yours: pass num_steps= and the arguments of one forward call."
        )
    num_steps, sigmas = call.pop("num_steps"), call.pop("sigmas", None)
    scope = _LoopStage(config, {"denoiser": uncompiled(net)}, num_steps, sigmas)
    shown = scope.rehearse()
    with entered(scope), torch.no_grad():
        for i in range(num_steps):
            scope.begin_step(i)
            net(**call)
    return shown


@contextmanager
def _undisturbed(target: Any, call: Mapping[str, Any], modules: Collection[Any]) -> Iterator[None]:
    """Puts back what a loop that is broken off leaves: generators, attention processors, models not offloaded again."""
    generators = [leaf for leaf in pytree.tree_leaves(dict(call)) if isinstance(leaf, torch.Generator)]
    states = [generator.get_state() for generator in generators]
    devices = {p.device for module in modules for p in module.parameters() if p.device.type == "cuda"}
    processors = {module: dict(getattr(module, "attn_processors", {})) for module in modules}
    has_bars, bars = hasattr(target, "set_progress_bar_config"), getattr(target, "_progress_bar_config", {})
    try:
        if has_bars:
            target.set_progress_bar_config(**{**bars, "disable": True})
        with torch.random.fork_rng(list(devices)):
            yield
    finally:
        if has_bars:
            target.set_progress_bar_config(**bars)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        for module, usual in processors.items():
            if usual and any(now is not usual[name] for name, now in module.attn_processors.items()):
                module.set_attn_processor(usual)
        if hasattr(target, "maybe_free_model_hooks"):
            target.maybe_free_model_hooks()


def _without_callbacks(call: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value for name, value in call.items() if not (name.startswith("callback") and callable(value))
    }
