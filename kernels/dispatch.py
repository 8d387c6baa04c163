"""Decides whether an op runs as a Triton kernel or as plain PyTorch; nothing else decides that."""

import functools
import importlib
import importlib.util
import os
import subprocess
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.compiler import is_compiling

P = ParamSpec("P")
R = TypeVar("R")

SWITCH = "DIFFCACHE_KERNELS"
FP8 = torch.float8_e4m3fn
SMALL = 1 << 14
"""Below so many elements a launch by Triton takes longer on the host than PyTorch's few launches take in all."""

FP8_CAPABILITY = (8, 9)  # the lowest compute capability with which Triton converts to and from e4m3


class Op(Generic[P, R]):
    """An op that is defined by plain PyTorch and has a Triton kernel. Its first argument is a tensor or a list of tensors.

    The definition in PyTorch is the reference, and the fake implementation too. The Triton function has the same name and
    parameters. It is in `<module>_triton`, beside the definition's module, which is imported when the function first runs.
    Inside a graph that is being compiled the op is one node, `torch.ops.diffcache.<name>`; elsewhere it is an ordinary
    call.

    Args:
        reference: the definition.
        mutates: names of the parameters that are written to.
        fake: makes the results' metadata, where the reference cannot run on fake tensors.

    Attributes:
        reference: as given.
    """

    def __init__(
        self, reference: Callable[P, R], mutates: Iterable[str] = (), fake: Callable[P, R] | None = None
    ) -> None:
        functools.update_wrapper(self, reference)
        self.reference = reference
        self._triton = (f"{reference.__module__}_triton", reference.__name__)
        self._node: Any = torch.library.custom_op(
            f"diffcache::{reference.__name__}",
            self._run,
            mutates_args=mutates,
            schema=torch.library.infer_schema(reference, mutates_args=mutates),
        )
        self._node.register_fake(fake or reference)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if is_compiling():
            node: Callable[P, R] = self._node
            return node(*args, **kwargs)
        return self._run(*args, **kwargs)

    def _run(self, *args: P.args, **kwargs: P.kwargs) -> R:
        arguments: tuple[Any, ...] = (*args, *kwargs.values())
        tensors = _tensors(arguments)
        device = tensors[0].device
        if not uses_triton(device) or not _suits_triton(arguments, tensors):
            return self.reference(*args, **kwargs)
        module, name = self._triton
        function: Callable[P, R] = getattr(importlib.import_module(module), name)
        if device.type != "cuda" or device.index == torch.cuda.current_device():
            return function(*args, **kwargs)
        with torch.cuda.device(device):
            return function(*args, **kwargs)


def op(mutates: Iterable[str] = (), fake: Any = None) -> Callable[[Callable[P, R]], Op[P, R]]:
    """Makes an `Op` of the plain-PyTorch function that it decorates.

    Args:
        mutates: names of the parameters that are written to.
        fake: makes the results' metadata, where the reference cannot run on fake tensors.
    """
    return lambda reference: Op(reference, mutates, fake)


@functools.cache
def uses_triton(device: torch.device) -> bool:
    """Whether ops on tensors of a device run as Triton kernels. By default they do on CUDA where Triton can build kernels.

    `DIFFCACHE_KERNELS=reference` or `=triton` forces one of them. It is read once in a process.

    Raises:
        ValueError: the switch has another value.
        RuntimeError: Triton is forced where it cannot run.
    """
    choice = _choice()
    if choice == "auto":
        return device.type == "cuda" and _installed() and _builds()
    if choice == "reference":
        return False
    if choice != "triton":
        raise ValueError(f"{SWITCH}={choice} is unknown: set it to auto, triton or reference.")
    if not _installed() or not (device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"):
        raise RuntimeError(
            f"{SWITCH}=triton needs Triton and CUDA tensors, or TRITON_INTERPRET=1 from the start of the process: "
            f"unset it to run on {device.type}."
        )
    return True


def _suits_triton(arguments: Sequence[Any], tensors: Sequence[Tensor]) -> bool:
    """Whether the tensors among the arguments are worth a launch, and lie on one device on which Triton converts all dtypes.

    PyTorch refuses those on several devices in a sentence, and takes empty ones.
    """
    device = tensors[0].device
    if tensors[0].numel() < SMALL and _choice() == "auto":
        return False
    if any(tensor.device != device or not tensor.numel() for tensor in tensors):
        return False
    has_fp8 = any(given is FP8 for given in (*arguments, *(tensor.dtype for tensor in tensors)))
    return not has_fp8 or device.type != "cuda" or _capability(device) >= FP8_CAPABILITY


def _choice() -> str:
    return os.environ.get(SWITCH, "auto")


def _tensors(arguments: Iterable[Any]) -> list[Tensor]:
    """The tensors among arguments and in lists among these."""
    found = []
    for argument in arguments:
        if isinstance(argument, Tensor):
            found.append(argument)
        elif isinstance(argument, (list, tuple)):
            found += [each for each in argument if isinstance(each, Tensor)]
    return found


@functools.cache
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None


@functools.cache
def _builds() -> bool:
    """Whether Triton can build and run a kernel here: it needs a C compiler and Python's headers. Tried once."""
    try:
        importlib.import_module("diffcache.kernels.probe_triton").run()
    except (RuntimeError, OSError, ImportError, AssertionError, subprocess.SubprocessError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[-1]
        warnings.warn(
            f"Triton cannot build kernels here ({reason}): everything runs as plain PyTorch, which is slower. Install a C "
            f"compiler and Python's headers, or set {SWITCH}=reference to say that this is meant.",
            stacklevel=2,
        )
        return False
    return True


@functools.cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)
