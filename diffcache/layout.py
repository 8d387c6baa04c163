"""How a module's output splits into tensors, and which input each of them is a residual to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from diffcache.calls import Call
from diffcache.formats import values_of
from diffcache.kernels.extrapolate import Correction, extrapolate
from diffcache.kernels.residual import store_residual
from diffcache.memory import Kept


@dataclass(frozen=True, slots=True)
class Stream:
    """One output tensor and the input that it is measured against.

    Attributes:
        source: path of the input among the call's tensors; None where no input has its shape.
        dim: the dimension in which the two differ; None where they do not.
        size: the extent in `dim` that both have: an image-to-video denoiser takes more channels than it returns,
            one with learned sigma returns more than it takes.
        dtype: the output's.
    """

    source: str | None
    dim: int | None
    size: int
    dtype: torch.dtype

    def cut(self, tensor: Tensor) -> Tensor:
        """The part that input and output have in common."""
        return tensor if self.dim is None else tensor.narrow(self.dim, 0, self.size)

    def base(self, tensors: Mapping[str, Tensor], like: Tensor) -> Tensor | None:
        """The input, cut or zero-padded to the shape of `like`."""
        if self.source is None:
            return None
        base = self.cut(tensors[self.source])
        if base.shape == like.shape:
            return base
        padded = base.new_zeros(like.shape)
        self.cut(padded).copy_(base)
        return padded


PLAIN = (type(None), bool, int, float, str)
LEAF = pytree.tree_structure(0)


class Layout:
    """Learned from a computed call; what it says holds for all calls that look like it.

    Attributes:
        complete: there are tensors, and nothing in the output could hide others.
        given: takes the tensors that are needed here out of a call's arguments.

    Args:
        call: the computed call.
        output: what the module returned: a tensor, or tensors in tuples, lists, dicts or output classes.
        residual: store what the module adds to its input (True) or its output as it is.
        continues: for an output, by place, the argument that it is known to continue.
    """

    def __init__(
        self, call: Call, output: Any, *, residual: bool, continues: Mapping[int, str] | None = None
    ) -> None:
        leaves, self._spec = _flattened(output)
        paths = {id(tensor): path for path, tensor in call.tensors.items()}
        self._constants = _constants(leaves)
        self._passed = {i: paths[id(leaf)] for i, leaf in enumerate(leaves) if id(leaf) in paths}
        self._places = [
            i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and i not in self._passed
        ]
        outputs = [leaves[i] for i in self._places]
        self.residual = residual
        self.complete = len(outputs) > 0 and all(isinstance(leaf, (*PLAIN, Tensor)) for leaf in leaves)
        known = {self._places.index(i): path for i, path in (continues or {}).items() if i in self._places}
        self.streams = _match(call, outputs, known)
        self._first_latent = next((path for path in call.tensors if call.is_latent(path)), None)
        self.given = call.picker({*self.sources(), *self._passed.values()})
        self._form = _form([*self.given(call.args, call.kwargs).values(), *outputs])

    def split(self, output: Any) -> list[Tensor]:
        """The output's tensors, in order, but for arguments that the module only hands on."""
        leaves, _ = _flattened(output)
        return [leaves[i] for i in self._places]

    def split_alike(self, output: Any, given: Mapping[str, Any]) -> list[Tensor] | None:
        """`split`, of a call that was `given` these and looks like the one learned from; None where it does not."""
        leaves, spec = _flattened(output)
        if not self.complete or spec != self._spec or _constants(leaves) != self._constants:
            return None
        outputs = [leaves[i] for i in self._places]
        alike = _form([*given.values(), *outputs]) == self._form
        return (
            outputs if alike and all(leaves[i] is given[path] for i, path in self._passed.items()) else None
        )

    def join(self, outputs: Sequence[Tensor], tensors: Mapping[str, Tensor]) -> Any:
        """An output like the one learned from, made of other `outputs` and the call's own `tensors`."""
        leaves = list(self._constants)
        for place, path in self._passed.items():
            leaves[place] = tensors[path]
        for place, output in zip(self._places, outputs, strict=True):
            leaves[place] = output
        return pytree.tree_unflatten(leaves, self._spec)

    def based(
        self, tensors: Mapping[str, Tensor], outputs: Sequence[Tensor]
    ) -> list[tuple[Tensor, Tensor | None]]:
        """What to store of a computed call: each output, and the base that it is to be a residual to."""
        return [
            (output, self._base(stream, tensors, output))
            for stream, output in zip(self.streams, outputs, strict=True)
        ]

    def features(self, tensors: Mapping[str, Tensor], outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The features of a computed call as they are before a format rounds them, for observers."""
        return tuple(store_residual(output, base) for output, base in self.based(tensors, outputs))

    def predict(
        self,
        tensors: Mapping[str, Tensor],
        features: Sequence[Sequence[Kept]],
        weights: Sequence[float],
        corrections: Sequence[Correction],
    ) -> list[Tensor]:
        """The outputs of a reused call, from the `features` of past calls (newest first) and their weights, corrected
        stream by stream."""
        return [
            extrapolate(
                past,
                weights,
                self._base(stream, tensors, values_of(past[0])),
                stream.dtype,
                correction,
            )
            if stream.dtype.is_floating_point
            else values_of(past[0]).clone()
            for stream, past, correction in zip(
                self.streams, zip(*features, strict=True), corrections, strict=True
            )
        ]

    def latents(self, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        """What adaptive decisions look at on the way in: the part of each input that its output evolves.

        Where no output has an input's shape, the first latent and the first output are looked at as they are.
        """
        paired = [stream.cut(tensors[stream.source]) for stream in self.streams if stream.source is not None]
        return paired or ([tensors[self._first_latent]] if self._first_latent else [])

    def evolved(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """And on the way out: the outputs that belong to `latents`, cut alike."""
        pairs = zip(self.streams, outputs, strict=True)
        paired = [stream.cut(output) for stream, output in pairs if stream.source is not None]
        return paired or ([outputs[0]] if self._first_latent else [])

    def kinds(self) -> list[tuple[torch.dtype, bool]]:
        """Of each stream its dtype, and whether it is stored as a residual."""
        return [
            (s.dtype, self.residual and s.source is not None and s.dtype.is_floating_point)
            for s in self.streams
        ]

    def sources(self) -> set[str]:
        """Paths of the inputs that some output is measured against."""
        return {stream.source for stream in self.streams if stream.source is not None}

    def _base(self, stream: Stream, tensors: Mapping[str, Tensor], like: Tensor) -> Tensor | None:
        return stream.base(tensors, like) if self.residual and stream.dtype.is_floating_point else None


def _flattened(output: Any) -> tuple[Sequence[Any], pytree.TreeSpec]:
    """As pytree does it, several times faster for a tensor, and for a tuple of tensors and Nones."""
    if isinstance(output, Tensor):
        return (output,), LEAF
    if type(output) is tuple and all(isinstance(leaf, Tensor) or leaf is None for leaf in output):
        return output, _tuple_of(len(output))
    return pytree.tree_flatten(output)


@cache
def _tuple_of(length: int) -> pytree.TreeSpec:
    return pytree.tree_structure((0,) * length)


def _constants(leaves: Sequence[Any]) -> list[Any]:
    """What is no tensor; where there are tensors, their class."""
    return [Tensor if isinstance(leaf, Tensor) else leaf for leaf in leaves]


def _form(values: Sequence[Any]) -> list[tuple[torch.Size, torch.dtype] | None]:
    return [(value.shape, value.dtype) if isinstance(value, Tensor) else None for value in values]


def _match(call: Call, outputs: Sequence[Tensor], known: Mapping[int, str]) -> list[Stream]:
    """Pairs outputs with inputs: those that are known, then equal shapes, then latents that differ in one dimension.

    Pairing with an input that never changes does no harm: its residual is held like the output itself.
    """
    free = {
        path: t for path, t in call.tensors.items() if t.is_floating_point() and t.ndim >= 2 and t.numel() > 0
    }
    found: dict[int, Stream] = {}
    for i, path in known.items():
        if path in free and free[path].shape == outputs[i].shape:
            found[i] = Stream(path, None, 0, outputs[i].dtype)
            del free[path]
    for exact in (True, False):
        for i, output in enumerate(outputs):
            if i in found or not output.is_floating_point():
                continue
            for path, tensor in free.items():
                if tensor.shape == output.shape:
                    found[i] = Stream(path, None, 0, output.dtype)
                elif not exact and call.is_latent(path) and (dim := _differs_in(tensor, output)) is not None:
                    found[i] = Stream(path, dim, min(tensor.shape[dim], output.shape[dim]), output.dtype)
                else:
                    continue
                del free[path]
                break
    return [found.get(i, Stream(None, None, 0, output.dtype)) for i, output in enumerate(outputs)]


def _differs_in(a: Tensor, b: Tensor) -> int | None:
    """The one dimension in which two shapes differ; None if that is the batch, or there are several."""
    if a.ndim != b.ndim or a.shape[:1] != b.shape[:1] or b.numel() == 0:
        return None
    dims = [i for i in range(1, a.ndim) if a.shape[i] != b.shape[i]]
    return dims[0] if len(dims) == 1 else None
