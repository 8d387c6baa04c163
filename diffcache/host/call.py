"""One call of a module: its arguments by name, its batch, and what tells it apart from other calls."""

from collections.abc import Callable, Container, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from diffcache.host.adapters import adapters_of
from diffcache.host.conventions import ADAPTER_MARKS, TIMES
from diffcache.host.signature import Signature, flattened, signature_of


class Argument(NamedTuple):
    """A tensor or plain value that a module was called with, and the tensor's version (see `version_of`)."""

    value: Any
    version: int | None = None


Conditioning = dict[str, Argument]


class Call:
    """The arguments of one call.

    Args:
        signature: the module's.
        args, kwargs: what the module is called with.

    Attributes:
        leaves: every tensor and plain value by its path ("added_cond_kwargs.text_embeds"), in signature order.
        tensors: the tensors among them.
        latent: name of the argument that is denoised: the first floating tensor of two or more dimensions, or the first
            list of such tensors.
        latents: its tensors.
        batch: number of samples: the latent's first dimension, or the length of the list.
        batched: the samples are rows of one tensor, not a list of tensors.
    """

    def __init__(self, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.signature, self.args, self.kwargs = signature, args, kwargs
        arguments = signature.bind(args, kwargs)
        self.leaves = flattened(arguments)
        self._refillable = self.leaves.keys() != arguments.keys() and not all(
            map(_is_fixed, arguments.values())
        )
        self.tensors: dict[str, Tensor] = {}
        for path, leaf in self.leaves.items():
            if isinstance(leaf, Tensor):
                self.tensors[path] = leaf
        self.latent, self.latents, self.batched = _latent_among(arguments)
        self.batch = len(self.latents)
        if self.batched:
            self.batch = self.latents[0].shape[0] if self.latents else 1

    @classmethod
    def of(cls, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "Call":
        """The call of a module with these arguments."""
        return cls(signature_of(module), args, kwargs)

    def mapped(self, function: Callable[[Tensor], Tensor]) -> "Call":
        """The same call with `function` of every tensor."""
        args, kwargs = pytree.tree_map_only(Tensor, function, (self.args, self.kwargs))
        return Call(self.signature, args, kwargs)

    def fingerprint(self, module: nn.Module) -> tuple[Any, ...]:
        """Shapes, dtypes and devices of the arguments, which of them are None, and the module's active adapters.

        When it changes, features stored before it must not be reused. Reads no tensor.
        """
        parts: list[Any] = []
        for path, leaf in self.leaves.items():
            if isinstance(leaf, Tensor):
                parts += (path, leaf.shape, leaf.dtype, leaf.device)
            else:
                parts += (path, leaf is None)
        for mark in ADAPTER_MARKS:
            if getattr(module, mark, None) not in (None, False):
                parts += adapters_of(module)
        return tuple(parts)

    def conditioning(self, evolving: Container[str]) -> "Conditioning":
        """The arguments that may tell guidance passes apart: all but times, the latent, and those in `evolving`."""
        found = {}
        prefix = f"{self.latent}."
        for path, leaf in self.leaves.items():
            if (
                path in evolving
                or path == self.latent
                or path.startswith(prefix)
                or "time" in path
                or path in TIMES
            ):
                continue
            if isinstance(leaf, Tensor):
                found[path] = Argument(leaf, version_of(leaf))
            elif isinstance(leaf, (bool, int, float, str)):
                found[path] = Argument(leaf)
        return found

    def state(self) -> dict[str, Any]:
        """Identity and version of every tensor among the arguments now. It changes when one is written to or replaced."""
        return {path: (id(tensor), version_of(tensor)) for path, tensor in self._tensors_now().items()}

    def is_written(self, before: Mapping[str, Any]) -> bool:
        """Whether a tensor among the arguments has been written to, or put there, since `state` returned `before`.

        One that was taken out of a list does not count: UNets take a T2I adapter's residuals out of a list that is made for each call.
        Where the same list is given again, the next call looks otherwise, and is computed.
        """
        return not {*self.state().values()} <= {*before.values()}

    def refilled(self) -> bool:
        """Whether a list or dict among the arguments now holds other tensors than when this object was made."""
        now = self._tensors_now()
        return now.keys() != self.tensors.keys() or any(now[p] is not t for p, t in self.tensors.items())

    def is_latent(self, path: str) -> bool:
        """Whether the tensor at `path` is the latent, or one of its list."""
        return path == self.latent or path.startswith(f"{self.latent}.")

    def divisible(self) -> bool:
        """Whether the shapes tell which arguments have one row for each sample, so that samples can be computed apart.

        They do not if the latents are a list, if an argument has neither one row nor as many as there are samples (frames
        folded into the batch), or if there are as many tokens as samples.
        """
        others = [t for path, t in self.tensors.items() if not self.is_latent(path)]
        features = [t for t in others if t.ndim >= 3]
        as_many_tokens = self.batch > 1 and any(t.shape[1] == self.batch for t in features)
        unclear = as_many_tokens and any(t.ndim == 2 and t.shape[0] == self.batch for t in others)
        return self.batched and not unclear and all(t.shape[0] in (1, self.batch) for t in features)

    def rows(self, rows: list[int]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments for some of the samples: these rows of each tensor whose first dimension is the batch."""
        args, kwargs = _take_rows((self.args, self.kwargs), rows, self.batch)
        return args, kwargs

    def _tensors_now(self) -> dict[str, Tensor]:
        if not self._refillable:
            return self.tensors
        leaves = flattened(self.signature.bind(self.args, self.kwargs))
        return {path: leaf for path, leaf in leaves.items() if isinstance(leaf, Tensor)}


def latents_of(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """`Call.latents` of a module's call, without the rest of it."""
    return _latent_among(signature_of(module).bind(args, kwargs))[1]


def version_of(tensor: Tensor) -> int | None:
    """How often a tensor has been written to; None for an inference tensor, which does not count."""
    return None if tensor.is_inference() else tensor._version


def _latent_among(arguments: Mapping[str, Any]) -> tuple[str, list[Tensor], bool]:
    """Of the arguments the `latent`, its `latents`, and whether they are `batched` (see `Call`)."""
    for name, value in arguments.items():
        if isinstance(value, Tensor):
            if value.ndim >= 2 and value.is_floating_point():
                return name, [value], True
        elif isinstance(value, (list, tuple)) and _are_samples(value):
            return name, list(value), False
    return "", [], True


def _is_fixed(value: Any) -> bool:
    """Whether a value is no list or dict, and no tuple that may hold one."""
    if type(value) is tuple:
        return all(isinstance(item, Tensor) for item in value)
    return isinstance(value, Tensor) or not isinstance(value, (Mapping, list, tuple))


def _are_samples(values: Any) -> bool:
    return len(values) > 0 and all(
        isinstance(value, Tensor) and value.is_floating_point() and value.ndim >= 2 for value in values
    )


def _take_rows(value: Any, rows: list[int], batch: int) -> Any:
    if isinstance(value, Tensor):
        if value.ndim == 0 or value.shape[0] != batch:
            return value
        return value.index_select(0, torch.tensor(rows, device=value.device))
    if isinstance(value, dict):
        return {key: _take_rows(item, rows, batch) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_take_rows(item, rows, batch) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value
