"""A dry run: a target's own loop, gone through without computing its denoisers."""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from diffcache.attach.loop_checks import noise_levels, number_of_steps
from diffcache.attach.overrides import denoiser_members, noise_scheduler_members
from diffcache.attach.requirements import units_of
from diffcache.config import CacheConfig
from diffcache.engine.choices import Choices
from diffcache.engine.loop_scope import LoopScope
from diffcache.engine.observers import NOBODY, observed
from diffcache.engine.pipeline_scope import PipelineScope
from diffcache.engine.progress import Progress
from diffcache.engine.runs import Run
from diffcache.engine.scopes import Scope, entered
from diffcache.hooks.attachments import swapped
from diffcache.hooks.class_swap import base_class
from diffcache.hooks.watcher import unit_members
from diffcache.host.compiled import each_uncompiled, uncompiled
from diffcache.host.components import (
    denoisers_of,
    noise_schedulers_of,
    refuse_foreign_cache,
    unknown_argument,
)
from diffcache.host.guidance import guidance_in
from diffcache.host.network_facts import facts_of_networks
from diffcache.noise_schedulers.timetable import Timetable
from diffcache.planning.first_call_bytes import FirstCallBytes
from diffcache.planning.footprint import FirstCallNeed, Footprint, held_by
from diffcache.planning.meta_engine import MetaEngine
from diffcache.planning.recorded_calls import RecordedCalls
from diffcache.reports.records import RunRecord
from diffcache.schedulers.errors import ConfigError, TargetError


class Over(BaseException):
    """The first run is over: what the loop does afterwards is of no interest."""


class DryRun:
    """What going through a call without computing it showed.

    Attributes:
        records: of its runs.
        engines: closed, all of them.
        fullest: what was held when most was held.
        others: most bytes that were held outside stores.
        first_calls: what the first calls of guidance passes need, with sites inside a denoiser.
        contexts: names that the loop gave to guidance passes.
    """

    def __init__(self) -> None:
        self.records: list[RunRecord] = []
        self._recorded = RecordedCalls()
        self._scope: Scope | None = None
        self.count_anew()

    def count_anew(self) -> None:
        """Begins to count anew: the calls so far came before the loop, and belong to no run."""
        self.engines: list[MetaEngine] = []
        self.fullest = Footprint()
        self.others = 0
        self.first_calls: list[FirstCallNeed] = []
        self.contexts: set[str] = set()

    def make_engine(self, choices: Choices, record: RunRecord, progress: Progress, _: object) -> MetaEngine:
        """An engine that does not compute. It agrees with no other process: those may not be planning."""
        engine = MetaEngine(choices, record, progress, self._recorded, self._note)
        self.engines.append(engine)
        return engine

    @contextmanager
    def inside(self, scope: Scope) -> Iterator[None]:
        """The loop runs inside this scope, whose engines are of this dry run's making."""
        self._scope = scope
        try:
            with entered(scope):
                yield
        finally:
            self.records, self._scope = scope.records, None

    def _note(self, first: FirstCallBytes | None = None) -> None:
        assert self._scope is not None
        assert self._scope.run is not None
        held = held_by(self._scope.run.engines.values())
        if first is not None:
            self.first_calls.append(FirstCallNeed(held, first.most, first.most_waiting))
        self.others = max(self.others, held.others)
        self.fullest = max(self.fullest, held, key=lambda one: one.bytes_in(None))
        if self._scope.context is not None:
            self.contexts.add(self._scope.context)


class _FirstRun(PipelineScope):
    """A pipeline call that is broken off after its first run. What it computes before the loop is no run.

    Args:
        count_anew: is called where that is over.
        others: see `PipelineScope`.
    """

    def __init__(self, count_anew: Callable[[], None], *others: Any, **options: Any) -> None:
        super().__init__(*others, **options)
        self._count_anew = count_anew

    def timesteps_set(self, noise_scheduler: object) -> None:
        comes_before = self.run is not None and self.run.progress.unsure
        super().timesteps_set(noise_scheduler)
        if comes_before and self.run is None:
            self.records.clear()
            self._count_anew()

    def stepped(
        self, noise_scheduler: object, timestep: object, options: Mapping[str, Any], result: Any
    ) -> None:
        super().stepped(noise_scheduler, timestep, options, result)
        if self.run is not None and self.run.progress.over:
            raise Over

    def begin_run(self, timetable: Timetable, *, hand_written: bool) -> Run:
        if self.records:
            raise Over
        return super().begin_run(timetable, hand_written=hand_written)


def dry_run(
    target: Any, config: CacheConfig, call: Mapping[str, Any], components: Collection[str] | None = None
) -> DryRun:
    """Goes through the first denoising loop of a call without computing it; the target is left as it was.

    Args:
        target: a pipeline, or a denoiser.
        config: the method.
        call: the pipeline's keyword arguments; of a denoiser, those of its forward, and `num_steps`.
        components: the pipeline's denoisers that are meant; None for all.

    Raises:
        TargetError: there is no denoiser, it is cached by somebody else, or `num_steps` is missing.
        ConfigError: a denoiser's forward does not take the arguments, or needs others.
    """
    denoisers = denoisers_of(target, components)
    facts = facts_of_networks(denoisers)
    for name, module in denoisers.items():
        refuse_foreign_cache(module, hooked=facts[name].has_foreign_hook)
    plain = each_uncompiled(denoisers)
    is_loop = isinstance(target, nn.Module)
    noise_schedulers = noise_schedulers_of(target)
    if not is_loop and call.get("generator") is None and unknown_argument(target, ["generator"]) is None:
        call = {**call, "generator": torch.Generator()}
    with ExitStack() as stack:
        stack.enter_context(swapped([*denoisers.values(), *plain.values()], denoiser_members))
        stack.enter_context(swapped(units_of(denoisers, facts, config), unit_members))
        stack.enter_context(swapped(noise_schedulers, noise_scheduler_members))
        stack.enter_context(_undisturbed(target, call, list(plain.values())))
        stack.enter_context(observed(NOBODY))
        if is_loop:
            return _loop(target, config, dict(call))
        shown = DryRun()
        scope = _FirstRun(
            shown.count_anew,
            config,
            plain,
            target,
            noise_schedulers,
            call=call,
            guidance=guidance_in(target, call),
            facts=facts,
            make_engine=shown.make_engine,
        )
        with shown.inside(scope), suppress(Over):
            base_class(type(target)).__call__(target, **_without_callbacks(call))
        return shown


def _loop(net: nn.Module, config: CacheConfig, call: dict[str, Any]) -> DryRun:
    if "num_steps" not in call:
        raise TargetError(
            "a denoiser's loop is yours: pass num_steps= and the arguments of one forward call."
        )
    num_steps = number_of_steps(call.pop("num_steps"), None, "plan")
    levels = noise_levels(call.pop("sigmas", None), num_steps, None)
    _check_forward(net, call)
    shown = DryRun()
    scope = LoopScope(config, {"denoiser": net}, num_steps, levels, make_engine=shown.make_engine)
    with shown.inside(scope), torch.no_grad():
        for i in range(num_steps):
            scope.begin_step(i)
            net(**call)
    return shown


def _check_forward(net: nn.Module, call: Mapping[str, Any]) -> None:
    """Refuses arguments with which a denoiser cannot be called."""
    own = uncompiled(net)
    signature = inspect.signature(own.forward)
    try:
        signature.bind(**call)
    except TypeError as error:
        raise ConfigError(
            f"plan() calls the forward of {type(own).__name__} as your loop does ({error}): pass its arguments beside num_steps=, "
            f"which are {', '.join(signature.parameters)}."
        ) from error


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
        # Putting the global state back would take back what other threads have drawn meanwhile.
        with nullcontext() if generators else torch.random.fork_rng(list(devices)):
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
