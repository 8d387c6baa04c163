"""Learned routers (HarmoniCa, arXiv 2410.01723) on a pipeline: trained in its own loop, and exported as schedules."""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from diffcache.attach.attach import detach
from diffcache.attach.overrides import denoiser_members, noise_scheduler_members
from diffcache.discovery.site_names import SUB_LAYERS
from diffcache.engine.branches import Branches
from diffcache.engine.pipeline_scope import PipelineScope
from diffcache.engine.scopes import entered
from diffcache.hooks.attachments import swapped
from diffcache.hooks.watcher import unit_members, watched
from diffcache.host.call import Call as DenoiserCall
from diffcache.host.compiled import each_uncompiled, uncompiled
from diffcache.host.components import denoisers_of, noise_schedulers_of
from diffcache.noise_schedulers.timetable import Timetable
from diffcache.prediction.predictors import Hold
from diffcache.profiling.recording.calling import Call, calls_hash
from diffcache.profiling.recording.journal import Entry, journal, key_of
from diffcache.profiling.recording.pictures import generators, pictures_of
from diffcache.profiling.recording.pipeline_facts import digests_of
from diffcache.profiling.recording.processes import broadcast, is_first, mean, place, share_of_calls, wait
from diffcache.profiling.searching.checkpoints import claim, log_line
from diffcache.profiling.searching.space import Space
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.schedule import Schedule
from diffcache.schedulers.search.harmonica import Learn, Trainer, Training
from diffcache.schedulers.search.router import Gates, Router, within_budget
from diffcache.store.formats import Format
from diffcache.store.rings import StoreSetup

CHECKPOINT, ABOUT, LOG = "router.safetensors", "router.json", "router.jsonl"
"""The files of a training in its folder."""

CONFIDENCE = 1.0
"""How far the logits of a table that a training starts with are from the threshold. Our choice: training can still cross it."""

logger = logging.getLogger("diffcache")


class PipelineDenoiser:
    """A pipeline call for a router's training: each denoiser call runs as teacher, and again as student with the cache.

    The pipeline itself guides, steps and decodes, and continues with the student's outputs. Each guidance pass is compared with
    its own teacher before the passes are combined; the published code compares afterwards.

    Args:
        pipe: a plain pipeline. Its denoisers run twice on the same arguments, so they must not write to them.
        call: keyword arguments. Its generators get other seeds for every draw.
        space: of sub-layers.

    Raises:
        ConfigError: a site is not a sub-layer. Blocks return the stream itself, which no gate may hold.
    """

    def __init__(self, pipe: Any, call: Call, space: Space) -> None:
        unfit = [site for site, kind in zip(space.sites, space.kinds, strict=True) if kind not in SUB_LAYERS]
        if unfit:
            raise ConfigError(f"{unfit[0]} is no sub-layer: record with sites='sub-layer' to train a router.")
        self.pipe = pipe
        self.call = call
        self.denoisers = each_uncompiled(denoisers_of(pipe))
        self.units = [self._last_unit(site) for site in space.sites]
        self.indices = {id(unit): index for index, unit in enumerate(self.units)}

    def run(self, draw: int, gates: Gates, learn: Learn | None) -> Tensor:
        """The pictures [N, ..., H, W] of one run; see `schedulers.search.harmonica.Denoiser`."""
        scope = _Student(self, gates, learn)
        modules = self.denoisers.values()
        with (
            _drawn(self.call, draw),
            _frozen(modules),
            swapped(noise_schedulers_of(self.pipe), noise_scheduler_members),
            swapped(modules, denoiser_members),
            swapped(self.units, unit_members),
            entered(scope),
        ):
            return pictures_of(self.pipe(**self.call))

    def _last_unit(self, site: str) -> nn.Module:
        """The unit whose output is the site's."""
        name, _, path = site.partition(".")
        return self.denoisers[name].get_submodule(path.split("..")[-1])


class _Student(PipelineScope):
    """The scope of one run: each denoiser call runs as student, and before it as teacher if there is something to learn."""

    def __init__(self, owner: PipelineDenoiser, gates: Gates, learn: Learn | None) -> None:
        super().__init__(None, owner.denoisers, owner.pipe, noise_schedulers_of(owner.pipe))
        self.gates, self.learn = gates, learn
        nothing_stored = StoreSetup(Hold(), Format(), Timetable())
        self.watches = owner.indices
        self.branches = {id(module): Branches(nothing_stored) for module in owner.denoisers.values()}
        self.branch = ""

    def call(self, module: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.branch, self.gates.tick = self._branch_and_tick(
            module, DenoiserCall.of(uncompiled(module), args, kwargs)
        )
        if self.learn is None or not self.gates.tick:
            with watched(self):
                return forward(*args, **kwargs)
        teacher = forward(*args, **kwargs)
        with torch.enable_grad(), watched(self):
            student = forward(*args, **kwargs)
        self.learn(self.gates.tick, _first(teacher), _first(student))
        return pytree.tree_map(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, student)

    def unit(self, module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        output, site = forward(*args, **kwargs), self.watches[id(module)]
        leaves, form = pytree.tree_flatten(output)
        gated = [
            self.gates(site, leaf, (self.branch, i)) if isinstance(leaf, Tensor) else leaf
            for i, leaf in enumerate(leaves)
        ]
        return pytree.tree_unflatten(gated, form)

    def _branch_and_tick(self, module: nn.Module, call: DenoiserCall) -> tuple[str, int]:
        progress = self.run_of(call).progress
        progress.called, tick = True, progress.tick
        branches = self.branches[id(uncompiled(module))]
        branches.begin_tick(tick)
        branch = branches.identify(call.conditioning(()), self.context, hand_written=False)
        return branch.name, tick


def train_router(
    pipe: Any,
    calls: Sequence[Call],
    space: Space,
    folder: Path,
    training: Training,
    *,
    begin: Tensor | None = None,
) -> Router:
    """Trains a router on a pipeline, and saves it after each run.

    If the folder holds a training of the same space, calls and settings, that training is continued as if it had never stopped.
    Under `accelerate launch` each process runs its part of the calls; their gradients are averaged.

    Args:
        pipe: a pipeline; it is plain afterwards.
        calls: keyword arguments of the calls of each run, equally many for each process. No pictures are needed.
        space: of sub-layers.
        folder: for `router.safetensors` (the checkpoint), `router.json` (what is trained), and `router.jsonl` (a log).
        training: settings.
        begin: bool [T, S], a table to start with, such as one of dynamic programming; None: random scores.

    Raises:
        ScheduleError: the folder holds another training.
        ConfigError: a site is not a sub-layer, the calls cannot be divided evenly, or `begin` is of another space.
    """
    shape = (space.num_ticks, len(space.sites))
    if begin is not None and begin.shape != shape:
        raise ConfigError(
            f"begin: a table of {list(begin.shape)} ticks and sites; give one of {list(shape)}."
        )
    detach(pipe)
    folder.mkdir(parents=True, exist_ok=True)
    start = None if begin is None else begin.int().tolist()
    about = {
        **space.about,
        **digests_of(pipe),
        "calls": calls_hash(calls),
        **vars(training),
        "begin": start,
    }
    if is_first():
        claim(folder / ABOUT, about)
    if begin is not None:
        router = Router.of_table(begin, confidence=CONFIDENCE)
    else:
        noise = torch.Generator().manual_seed(training.seed)
        router = Router(torch.randn(shape, generator=noise))
    trainer = Trainer(router, space.prices, training)
    if broadcast((folder / CHECKPOINT).exists()):
        trainer.load(folder / CHECKPOINT)
        logger.info("%s: continuing after run %d", folder, trainer.run)
    wait()
    denoisers = [PipelineDenoiser(pipe, call, space) for call in share_of_calls(calls)]

    def note(name: str, make: Callable[[], Tensor]) -> Tensor:
        key = key_of("router", name=name, process=place(), about=json.dumps(about))
        return journal().entry(key, lambda: Entry({"value": make()}, {})).tensors["value"]

    for progress in trainer.train(denoisers, mean, note):
        if is_first():
            trainer.save(folder / CHECKPOINT)
            log_line(folder / LOG, vars(progress))
        logger.info("run %d: loss %.4g, %.0f%% computed", progress.run, progress.loss, 100 * progress.share)
    return router


def routed(router: Router, space: Space, compute: float) -> Schedule:
    """The schedule that computes by falling score until a share of the full run's work is spent.

    It keeps the scores, from which `within_budget` makes the tables of other shares.

    Raises:
        ConfigError: the share does not pay for one tick.
    """
    scores = router.scores().detach()
    table = within_budget(scores, space.prices, space.budget(compute))
    kept = {"scores": scores.tolist(), "prices": space.prices, "rest": space.rest}
    return space.schedule(table, {"method": "router", "compute": compute, **kept})


@contextmanager
def _drawn(call: Call, draw: int) -> Iterator[None]:
    """Sets the call's generators to the seeds of a draw, and at the end back to their own."""
    own = [generator.initial_seed() for generator in generators(call)]
    try:
        for generator, seed in zip(generators(call), own, strict=True):
            generator.manual_seed(seed + draw * len(own))
        yield
    finally:
        for generator, seed in zip(generators(call), own, strict=True):
            generator.manual_seed(seed)


@contextmanager
def _frozen(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Switches the gradients of their parameters off, and at the end on again."""
    trainable = [p for module in modules for p in module.parameters() if p.requires_grad]
    for parameter in trainable:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)


def _first(output: Any) -> Tensor:
    """The first tensor of a denoiser's output."""
    found: Tensor = next(leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor))
    return found
