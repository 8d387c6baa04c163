"""Learned routers (HarmoniCa, arXiv 2410.01723) on a pipeline: trained inside its own loop, and exported as a schedule."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from diffcache.attach.attach import detach
from diffcache.attach.overrides import denoiser_members, noise_scheduler_members
from diffcache.discovery.site_names import SUB_LAYERS
from diffcache.engine.branches import Branches
from diffcache.engine.scopes import PipelineScope, entered
from diffcache.hooks.class_swap import swapped
from diffcache.hooks.watcher import unit_members, watched
from diffcache.host.call import Call as DenoiserCall
from diffcache.host.compiled import each_uncompiled, uncompiled
from diffcache.host.components import denoisers_of, noise_schedulers_of
from diffcache.noise_schedulers.timetable import Timetable
from diffcache.prediction.predictors import Hold
from diffcache.profiling.recording.calling import Call, calls_hash
from diffcache.profiling.recording.pictures import generators, pictures_of
from diffcache.profiling.searching.checkpoints import claimed, log_line
from diffcache.profiling.searching.processes import is_first, mean, of_first, share_of_calls, wait
from diffcache.profiling.searching.space import Space, budget_for, marks_of, share_of
from diffcache.schedulers.errors import ConfigError, ScheduleError
from diffcache.schedulers.schedule import Schedule
from diffcache.schedulers.search.harmonica import Learn, Trainer, Training
from diffcache.schedulers.search.router import Gates, Router, cut
from diffcache.store.formats import Format
from diffcache.store.rings import Setup

CHECKPOINT, ABOUT, LOG = "router.safetensors", "router.json", "router.jsonl"
CONFIDENCE = 1.0
"""Logits of a table that a training begins at, on either side of the threshold: it can still be turned over."""

logger = logging.getLogger("diffcache")


class PipelineDenoiser:
    """A pipeline call as a router's training sees it: at each denoiser call the teacher, then the student with the cache.

    The pipeline itself guides, steps and decodes; what it goes on with is the student's. Each guidance pass is compared
    with its own teacher, before they are combined (published: after).

    Args:
        pipe: a plain pipeline. Its denoisers' forwards run twice on the same arguments, so they must not write to them.
        call: keyword arguments; its generators are seeded anew for every draw.
        space: of sub-layers.

    Raises:
        ConfigError: a place is not a sub-layer: what blocks return is the stream itself, which no gate may hold.
    """

    def __init__(self, pipe: Any, call: Call, space: Space) -> None:
        unfit = [
            place for place, kind in zip(space.places, space.kinds, strict=True) if kind not in SUB_LAYERS
        ]
        if unfit:
            raise ConfigError(f"{unfit[0]} is no sub-layer: record with sites='sub-layer' to train a router.")
        self.pipe = pipe
        self.call = call
        self.denoisers = each_uncompiled(denoisers_of(pipe))
        self.ends = {id(self._end(place)): site for site, place in enumerate(space.places)}
        self.units = [self._end(place) for place in space.places]

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

    def _end(self, place: str) -> nn.Module:
        """The unit whose output is the place's."""
        name, _, path = place.partition(".")
        return self.denoisers[name].get_submodule(path.split("..")[-1])


class _Student(PipelineScope):
    """The loop of one run: every denoiser call is the student's, and the teacher's where something is to be learned."""

    def __init__(self, owner: PipelineDenoiser, gates: Gates, learn: Learn | None) -> None:
        super().__init__(None, owner.denoisers, owner.pipe, noise_schedulers_of(owner.pipe))
        self.owner, self.gates, self.learn = owner, gates, learn
        self.watches = owner.ends
        nothing_stored = Setup(Hold(), Format(), Timetable())
        self.branches = {id(module): Branches(nothing_stored) for module in owner.denoisers.values()}
        self.lane = ""

    def call(self, module: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.lane, self.gates.tick = self._place(module, DenoiserCall.of(uncompiled(module), args, kwargs))
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
            self.gates(site, leaf, (self.lane, i)) if isinstance(leaf, Tensor) else leaf
            for i, leaf in enumerate(leaves)
        ]
        return pytree.tree_unflatten(gated, form)

    def _place(self, module: nn.Module, call: DenoiserCall) -> tuple[str, int]:
        """Guidance pass and tick of a call."""
        progress = self.run_of(call).progress
        progress.called, tick = True, progress.tick
        branches = self.branches[id(uncompiled(module))]
        branches.begin_tick(tick)
        branch = branches.identify(call.conditioning(()), self.context, by_order=False)
        return branch.name, tick


def train_router(
    pipe: Any,
    calls: Sequence[Call],
    space: Space,
    folder: Path,
    training: Training,
    *,
    begin: Tensor | None = None,
    seed: int = 0,
) -> Router:
    """Trains a router on a pipeline, and writes it down run by run.

    A folder that holds a training of the same space, calls and settings is gone on with, as if it had never stopped. Under
    `accelerate launch` each process runs its part of the calls of a draw; their gradients are averaged.

    Args:
        pipe: a pipeline; it is plain afterwards.
        calls: what one draw is made of, as many for each process; no pictures are needed.
        space: of sub-layers.
        folder: for `router.safetensors` (the checkpoint), `router.json` (what it is of), and `router.jsonl`.
        training: how.
        begin: bool [T, S]: a table to begin at, as dynamic programming makes it; None: random scores.
        seed: of the scores that it begins with.

    Raises:
        ScheduleError: the folder holds another training.
        ConfigError: a place is not a sub-layer, the calls cannot be dealt out evenly, or `begin` is of another space.
    """
    shape = (space.num_ticks, len(space.places))
    if begin is not None and begin.shape != shape:
        raise ConfigError(
            f"begin: a table of {list(begin.shape)} ticks and places; give one of {list(shape)}."
        )
    detach(pipe)
    folder.mkdir(parents=True, exist_ok=True)
    settings = {**vars(training), "seed": seed}
    begins = None if begin is None else begin.int().tolist()
    if is_first():
        claimed(folder / ABOUT, {**space.about, "calls": calls_hash(calls), **settings, "begin": begins})
    if begin is not None:
        router = Router.of_table(begin, confidence=CONFIDENCE)
    else:
        noise = torch.Generator().manual_seed(seed)
        router = Router(torch.randn(shape, generator=noise))
    trainer = Trainer(router, space.prices, training)
    if of_first((folder / CHECKPOINT).exists()):
        trainer.load(folder / CHECKPOINT)
        logger.info("%s: going on after run %d", folder, trainer.run)
    wait()
    denoisers = [PipelineDenoiser(pipe, call, space) for call in share_of_calls(calls)]
    for progress in trainer.train(denoisers, mean):
        if is_first():
            trainer.save(folder / CHECKPOINT)
            log_line(folder / LOG, vars(progress))
        logger.info("run %d: loss %.4g, %.0f%% computed", progress.run, progress.loss, 100 * progress.share)
    return router


def routed(router: Router, space: Space, compute: float) -> Schedule:
    """The places of highest score that a share of the full run's work pays for, as a schedule.

    It keeps the soft scores, from which `rebudgeted` cuts another share.

    Raises:
        ConfigError: the share does not pay for one tick.
    """
    scores = router.scores().detach()
    table = cut(scores, space.prices, space.budget(compute))
    kept = {"scores": scores.tolist(), "prices": space.prices, "rest": space.rest}
    return space.schedule(table, {"method": "router", "compute": compute, **kept})


def rebudgeted(schedule: Schedule, compute: float) -> Schedule:
    """A router's schedule for another share of the full run's work, from the soft scores that it keeps.

    Raises:
        ScheduleError: it was not made by a router.
        ConfigError: the share does not pay for one tick.
    """
    made = schedule.producer
    if "scores" not in made:
        raise ScheduleError(
            "producer.scores: a router's schedule has them, and this is none: search another."
        )
    scores = torch.tensor(made["scores"])
    table = cut(scores, made["prices"], budget_for(compute, len(scores), made["prices"], made["rest"]))
    spent = float(share_of(table, made["prices"], made["rest"]))
    return replace(
        schedule,
        table=marks_of(schedule.sites, table),
        producer={**made, "compute": compute},
        measured={"compute_fraction": round(spent, 4)},
    )


@contextmanager
def _drawn(call: Call, draw: int) -> Iterator[None]:
    """The call's generators are at the seeds of a draw for a while, and then back at their own."""
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
    """Their parameters ask for no gradient for a while."""
    asking = [p for module in modules for p in module.parameters() if p.requires_grad]
    for parameter in asking:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in asking:
            parameter.requires_grad_(True)


def _first(output: Any) -> Tensor:
    found: Tensor = next(leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor))
    return found
