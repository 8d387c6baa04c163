"""The node for ComfyUI, with stand-ins of ComfyUI's patcher, guider and executors (comfy/patcher_extension.py, samplers.py)."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

FILE = Path(__file__).resolve().parents[2] / "integrations" / "comfyui_diffcache.py"
OUTER, APPLY = "outer_sample", "apply_model"


class Executor:
    """ComfyUI's WrapperExecutor: calls wrappers in turn, each with an executor for the rest, and knows the class's object."""

    def __init__(
        self, original: Callable[..., Any], class_obj: Any, wrappers: list[Callable[..., Any]]
    ) -> None:
        self.original, self.class_obj, self.wrappers = original, class_obj, wrappers

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.wrappers:
            return self.original(*args, **kwargs)
        first, *rest = self.wrappers
        return first(Executor(self.original, self.class_obj, rest), *args, **kwargs)


class Patcher:
    """ComfyUI's ModelPatcher, as far as a node sees it."""

    def __init__(self, model: Any) -> None:
        self.model, self.wrappers = model, dict[str, dict[str, list[Callable[..., Any]]]]()

    def clone(self) -> Patcher:
        made = Patcher(self.model)
        made.wrappers = {
            kind: {key: [*of] for key, of in keys.items()} for kind, keys in self.wrappers.items()
        }
        return made

    def add_wrapper_with_key(self, kind: str, key: str, wrapper: Callable[..., Any]) -> None:
        self.wrappers.setdefault(kind, {}).setdefault(key, []).append(wrapper)

    def remove_wrappers_with_key(self, kind: str, key: str) -> None:
        self.wrappers.get(kind, {}).pop(key, None)

    def of(self, kind: str) -> list[Callable[..., Any]]:
        return [wrapper for wrappers in self.wrappers.get(kind, {}).values() for wrapper in wrappers]


class Net(nn.Module):
    """A diffusion model that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.weight = nn.Parameter(torch.tensor(0.8))

    def forward(
        self,
        x: Tensor,
        timestep: Tensor,
        context: Any = None,
        control: Any = None,
        transformer_options: Any = None,
    ) -> Tensor:
        self.calls += 1
        return self.weight * x * timestep.view(-1, 1, 1, 1) / 1000 + context.mean()


class BaseModel:
    """ComfyUI's BaseModel: `apply_model` with its wrappers calls the network with times in thousands."""

    def __init__(self) -> None:
        self.diffusion_model = Net().eval().requires_grad_(False)

    def apply_model(
        self, patcher: Patcher, x: Tensor, t: Tensor, context: Tensor, options: dict[str, Any]
    ) -> Tensor:
        def plain(
            x: Tensor, t: Tensor, c_concat: Any, c_crossattn: Any, control: Any, options: Any
        ) -> Tensor:
            velocity = self.diffusion_model(
                x, t * 1000, context=c_crossattn, control=control, transformer_options=options
            )
            return x - t.view(-1, 1, 1, 1) * velocity

        return Executor(plain, self, patcher.of(APPLY))(x, t, None, context, None, options)


def sample_euler(model: Callable[[Tensor, Tensor], Tensor], x: Tensor, sigmas: Tensor) -> Tensor:
    for now, after in pairwise(sigmas):
        x = x + (x - model(x, now.expand(len(x)))) / now * (after - now)
    return x


def sample_heun(model: Callable[[Tensor, Tensor], Tensor], x: Tensor, sigmas: Tensor) -> Tensor:
    return sample_euler(model, x, sigmas)


class Guider:
    """ComfyUI's CFGGuider: two passes in one call, or (short of memory) one after the other."""

    def __init__(self, patcher: Patcher, apart: bool = False) -> None:
        self.model_patcher, self.apart = patcher, apart

    def sample(self, noise: Tensor, function: Callable[..., Tensor], sigmas: Tensor) -> Tensor:
        sampler = SimpleNamespace(sampler_function=function)
        outer = Executor(self.outer_sample, self, self.model_patcher.of(OUTER))
        found: Tensor = outer(
            noise, torch.zeros_like(noise), sampler, sigmas, None, None, True, 1, latent_shapes=None
        )
        return found

    def outer_sample(
        self, noise: Tensor, latent_image: Tensor, sampler: Any, sigmas: Tensor, *others: Any, **named: Any
    ) -> Tensor:
        found: Tensor = sampler.sampler_function(self.guided, noise, sigmas)
        return found

    def guided(self, x: Tensor, sigma: Tensor) -> Tensor:
        model, options = self.model_patcher.model, {"sigmas": sigma, "cond_or_uncond": [0, 1]}
        contexts = torch.stack([torch.full((2, 3), 0.3), torch.zeros(2, 3)])
        if self.apart:
            cond, uncond = (
                model.apply_model(self.model_patcher, x, sigma, one[None], dict(options)) for one in contexts
            )
        else:
            both = model.apply_model(
                self.model_patcher, x.repeat(2, 1, 1, 1), sigma.repeat(2), contexts, dict(options)
            )
            cond, uncond = both.chunk(2)
        return uncond + 3 * (cond - uncond)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The node's module, as ComfyUI imports it."""
    extension = ModuleType("comfy.patcher_extension")
    extension.WrappersMP = SimpleNamespace(OUTER_SAMPLE=OUTER, APPLY_MODEL=APPLY)  # type: ignore[attr-defined]
    comfy = ModuleType("comfy")
    comfy.patcher_extension = extension  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "comfy", comfy)
    monkeypatch.setitem(sys.modules, "comfy.patcher_extension", extension)
    spec = importlib.util.spec_from_file_location("comfyui_diffcache", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SIGMAS = torch.linspace(1, 0, 21)


def made(nodes: Any, speedup: float = 2.0, method: str = "trajectory") -> tuple[Patcher, Patcher]:
    """A model, and what the node makes of it."""
    node = nodes.NODE_CLASS_MAPPINGS["DiffcacheNode"]()
    plain = Patcher(BaseModel())
    (cached,) = getattr(node, node.FUNCTION)(plain, speedup, method)
    return plain, cached


def drawn(
    patcher: Patcher, function: Callable[..., Tensor] = sample_euler, apart: bool = False
) -> tuple[Tensor, int]:
    """The sample, and how often the network was called."""
    net = patcher.model.diffusion_model
    net.calls = 0
    noise = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        return Guider(patcher, apart).sample(noise, function, SIGMAS), net.calls


def test_the_node_is_declared_as_comfyui_reads_it(nodes: Any) -> None:
    kind = nodes.NODE_CLASS_MAPPINGS["DiffcacheNode"]
    required = kind.INPUT_TYPES()["required"]
    assert required["model"] == ("MODEL",)
    assert required["speedup"][0] == "FLOAT"
    assert required["method"][0][0] == "trajectory"
    assert "taylorseer" in required["method"][0]
    assert not {"fast-dllm-dual", "replay"} & {*required["method"][0]}
    assert kind.RETURN_TYPES == ("MODEL",)
    assert {*nodes.NODE_DISPLAY_NAME_MAPPINGS} == {*nodes.NODE_CLASS_MAPPINGS}


@pytest.mark.parametrize("apart", [False, True], ids=["batched", "apart"])
def test_half_of_the_calls_are_left_out(nodes: Any, apart: bool) -> None:
    plain, cached = made(nodes)
    full, calls = drawn(plain, apart=apart)
    near, fewer = drawn(cached, apart=apart)
    assert (calls, fewer) == ((40, 20) if apart else (20, 10))
    assert not torch.equal(near, full)
    assert (near - full).abs().max() < 0.05 * full.abs().max()


def test_a_speed_up_of_one_changes_nothing(nodes: Any) -> None:
    plain, cached = made(nodes, speedup=1.0)
    assert torch.equal(drawn(cached)[0], drawn(plain)[0])


def test_the_model_is_plain_after_sampling_and_after_an_error(nodes: Any) -> None:
    plain, cached = made(nodes)
    full = drawn(plain)[0]
    drawn(cached)
    assert type(cached.model.diffusion_model) is Net
    assert torch.equal(drawn(plain)[0], full)

    def sample_euler(model: Any, x: Tensor, sigmas: Tensor) -> Tensor:
        model(x, sigmas[:1])
        raise InterruptedError

    with pytest.raises(InterruptedError):
        drawn(cached, sample_euler)
    assert type(cached.model.diffusion_model) is Net
    assert drawn(cached)[1] == 10


def test_of_two_nodes_in_a_row_the_second_counts(nodes: Any) -> None:
    _, first = made(nodes)
    (second,) = nodes.DiffcacheNode().apply(first, 4.0, "trajectory")
    assert [drawn(patcher)[1] for patcher in (second, first)] == [5, 10]
    assert type(second.model.diffusion_model) is Net


def test_a_sampler_of_several_calls_in_a_step_runs_in_full(nodes: Any) -> None:
    plain, cached = made(nodes)
    assert torch.equal(drawn(cached, sample_heun)[0], drawn(plain, sample_heun)[0])


def test_a_method_that_is_not_there_is_refused(nodes: Any) -> None:
    with pytest.raises(ValueError, match="there is no method 'fast'"):
        made(nodes, method="fast")
