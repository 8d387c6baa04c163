"""Modules that `torch.compile` has wrapped, or compiled in place."""

from collections.abc import Iterable, Mapping

from torch import nn

from diffcache.host.structure import modules_inside


def uncompiled(module: nn.Module) -> nn.Module:
    """The original of a module that `torch.compile(original)` returned; any other module itself."""
    inner = module.__dict__.get("_modules", {}).get("_orig_mod")
    return inner if isinstance(inner, nn.Module) else module


def each_uncompiled(modules: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """`uncompiled` of each module, under the same names."""
    return {name: uncompiled(module) for name, module in modules.items()}


def is_compiled(module: nn.Module) -> bool:
    """Whether `torch.compile` has wrapped it, or its own `compile()` was called."""
    return uncompiled(module) is not module or module.__dict__.get("_compiled_call_impl") is not None


def holds_compiled(module: nn.Module) -> bool:
    """Whether it or a module inside it is compiled.

    Compiled code may write what it returns to the same memory at every call (CUDA graphs, `mode="reduce-overhead"`).
    """
    return any(map(is_compiled, modules_inside(module)))


def compiled_above(denoiser: nn.Module, paths: Iterable[str]) -> str | None:
    """Path of a compiled module that contains one of those at `paths` and so hides its calls; None if none does."""
    compiled = {path for path, module in denoiser.named_modules() if path and is_compiled(module)}
    parents = (path[:end] for path in paths for end, letter in enumerate(path) if letter == ".")
    return next((parent for parent in parents if parent in compiled), None)
