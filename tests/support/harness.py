"""What many tests need: reference renders, counting what really ran, and what is alive."""

from __future__ import annotations

import copy
import functools
import gc
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from torch import Tensor, nn
from zoo.pipelines import CASES, with_noise_scheduler

from diffcache import RunReport, accelerate, report

STEPS = 6

NOT_OBSERVED = {
    "SkyReelsV2DiffusionForcingPipeline",
    "SkyReelsV2DiffusionForcingPipeline-two-loops",
}
"""Pipelines that step copies of their noise scheduler only."""

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "uniform": ("uniform", {"interval": 3, "order": 1}),
    "easycache": ("easycache", {"threshold": 0.4, "warmup_steps": 0}),
    "int8": ("uniform", {"interval": 3, "order": 1, "cache_dtype": "int8"}),
}
RUNS = [
    ("WanPipeline", "uniform"),
    ("WanPipeline", "easycache"),
    ("FluxPipeline-true-cfg", "easycache"),
    ("StableDiffusionPipeline", "uniform"),
    ("WanPipeline-two-experts", "easycache"),
    ("FluxPipeline-true-cfg", "int8"),
]
each_run = pytest.mark.parametrize(("name", "method"), RUNS, ids=["-".join(run) for run in RUNS])


class Abort(Exception):
    """What a callback raises half-way."""


# -- renders ------------------------------------------------------------------------------------------------------


@functools.cache
def plain(name: str, noise_scheduler: str | None = None) -> Any:
    """A pipeline that is never accelerated; one for the whole session."""
    return dressed(CASES[name].build(), noise_scheduler)


def dressed(pipe: Any, noise_scheduler: str | None) -> Any:
    """With another noise scheduler; "PLMS" is PNDM as Stable Diffusion uses it, without its Runge-Kutta steps."""
    if noise_scheduler == "PLMS":
        with_noise_scheduler(pipe, "PNDM")
        pipe.scheduler = type(pipe.scheduler).from_config(pipe.scheduler.config, skip_prk_steps=True)
    elif noise_scheduler is not None:
        with_noise_scheduler(pipe, noise_scheduler)
    return pipe


@functools.cache
def reference(
    name: str, seed: int = 0, steps: int = STEPS, noise_scheduler: str | None = None, **overrides: Any
) -> Tensor:
    """What the plain pipeline renders; overrides must be hashable."""
    return CASES[name].render(plain(name, noise_scheduler), seed, steps, **overrides)


@functools.cache
def reference_calls(
    name: str, steps: int = STEPS, noise_scheduler: str | None = None, **overrides: Any
) -> Counter[str]:
    """How often the plain pipeline calls each of its denoisers in one render."""
    with counted(plain(name, noise_scheduler), CASES[name].denoisers) as calls:
        CASES[name].render(plain(name, noise_scheduler), 0, steps, **overrides)
    return calls


def accelerated(
    name: str, method: str = "uniform", noise_scheduler: str | None = None, **options: Any
) -> Any:
    """A fresh pipeline with a cache."""
    return accelerate(dressed(CASES[name].build(), noise_scheduler), method, **options)


def fresh(name: str, method: str) -> Any:
    """A fresh pipeline with one of `METHODS`."""
    return accelerated(name, METHODS[method][0], **METHODS[method][1])


def render(pipe: Any, name: str, seed: int = 0, steps: int = STEPS, **overrides: Any) -> Tensor:
    return CASES[name].render(pipe, seed, steps, **overrides)


def aborting(at: int, error: BaseException | None = None) -> Callable[..., Any]:
    """A callback for the end of a step that raises after step `at`."""

    def callback(pipe: Any, step: int, timestep: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        if step == at:
            raise error or Abort
        return kwargs

    return callback


@contextmanager
def failing(module: nn.Module, call: int) -> Iterator[None]:
    """The forward of `module` raises when it is reached for the `call`-th time."""
    calls = Counter[str]()

    def hook(module: Any, args: Any, output: Any) -> None:
        calls.update(["all"])
        if calls["all"] == call:
            raise Abort

    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


# -- what really ran ----------------------------------------------------------------------------------------------


def reweighted(module: nn.Module) -> nn.Module:
    """A copy with other weights."""
    other = copy.deepcopy(module)
    for parameter in other.parameters():
        parameter.data.mul_(1.25)
    return other


def part(pipe: Any, name: str) -> nn.Module:
    return pipe.components[name] if hasattr(pipe, "components") else getattr(pipe, name)


@contextmanager
def counted(pipe: Any, names: tuple[str, ...]) -> Iterator[Counter[str]]:
    """Counts the calls that reach the forward of each of these denoisers."""
    calls: Counter[str] = Counter()

    def counting(name: str) -> Callable[..., None]:
        return lambda module, args: calls.update([name])

    handles = [part(pipe, name).register_forward_pre_hook(counting(name)) for name in names]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def computed_calls(told: RunReport) -> Counter[str]:
    """The calls that the report says were computed, by site."""
    return Counter(call.site for call in told.calls if call.computed > 0)


def all_calls(told: RunReport) -> Counter[str]:
    """The calls that the report lists, by site."""
    return Counter(call.site for call in told.calls)


def reused(pipe: Any) -> int:
    """How many calls of the last run were reused."""
    return sum(call.computed == 0 for call in report(pipe).calls)


# -- an independent model of `uniform` ----------------------------------------------------------------------------


@contextmanager
def uniform_by_hand(module: nn.Module, interval: int, ticks: int, passes: int) -> Iterator[None]:
    """Holds the residual of a plain denoiser between every `interval`-th tick, with `passes` calls in each."""
    forward, calls, stored = module.forward, 0, {}

    def wrapped(*args: Any, **kwargs: Any) -> tuple[Tensor]:
        nonlocal calls
        tick, branch = divmod(calls, passes)
        calls += 1
        latent = args[0] if args else kwargs.get("hidden_states", kwargs.get("sample"))
        if tick % interval == 0 or tick == ticks - 1:
            output = forward(*args, **kwargs)
            stored[branch] = output[0].double() - latent.double()
            return output
        return ((latent.double() + stored[branch]).to(latent.dtype),)

    module.forward = wrapped
    try:
        yield
    finally:
        del module.forward


# -- what is alive ------------------------------------------------------------------------------------------------


class NewTensors:
    """The tensors that Python can reach and that were not there when `counting_new_tensors` was entered."""

    def __init__(self) -> None:
        gc.collect()
        self._old = {id(tensor): weakref.ref(tensor) for tensor in _tensors()}

    def __iter__(self) -> Iterator[Tensor]:
        return (tensor for tensor in _tensors() if not self._is_old(tensor))

    def shapes(self) -> Counter[Any]:
        """How many there are of each shape and dtype."""
        gc.collect()
        return Counter((tuple(tensor.shape), tensor.dtype) for tensor in self)

    def bytes(self) -> int:
        """The memory behind them; shared memory is counted once."""
        storages = [tensor.untyped_storage() for tensor in self]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def _is_old(self, tensor: Tensor) -> bool:
        """A number (`id`) is given again once its tensor is gone."""
        old = self._old.get(id(tensor))
        return old is not None and old() is tensor


def _tensors() -> Iterator[Tensor]:
    return (thing for thing in gc.get_objects() if issubclass(type(thing), Tensor))


@contextmanager
def counting_new_tensors() -> Iterator[NewTensors]:
    yield NewTensors()
