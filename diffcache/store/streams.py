"""Streams: the tensors that a module's output consists of, and the input that each of them is a residual to."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from diffcache.host.call import Call
from diffcache.kernels.extrapolate import NO_CORRECTION, Correction, extrapolate
from diffcache.kernels.residual import store_residual
from diffcache.store.formats import Pair, values_of
from diffcache.store.placement import Kept


@dataclass(frozen=True, slots=True)
class Stream:
    """One output tensor and the input that it is measured against.

    Attributes:
        source: path of the input among the call's tensors; None where no input has its shape, or it is not floating.
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
        base = tensors[self.source]
        if self.dim is None:
            return base
        base = self.cut(base)
        if base.shape == like.shape:
            return base
        padded = base.new_zeros(like.shape)
        self.cut(padded).copy_(base)
        return padded


PLAIN = (type(None), bool, int, float, str)

_form = attrgetter("shape", "dtype")


class Layout:
    """How a module's output splits into streams. Learned from a computed call; it holds for all calls that look alike.

    Attributes:
        streams: the output's tensors, but for arguments that the module only hands on.
        residual: streams are stored as what the module adds to its input, not as they are.
        complete: there are tensors, and nothing in the output could hide others.
        given: takes what `based_alike`, `based`, `predict` and `join` need out of a call's arguments.

    Args:
        call: the computed call.
        output: what the module returned: a tensor, or tensors in tuples, lists, dicts or output classes.
        residual: store what the module adds to its input (True) or its output as it is.
        continues: by index of an output, the argument that it is known to continue.
    """

    def __init__(
        self, call: Call, output: Any, *, residual: bool, continues: Mapping[int, str] | None = None
    ) -> None:
        leaves, self._spec = pytree.tree_flatten(output)
        self._type = type(output)
        self._is_flat = self._type is tuple and self._spec.num_nodes == 1 + len(leaves)
        paths = {id(tensor): path for path, tensor in call.tensors.items()}
        self._constants = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self._passed = {i: paths[id(leaf)] for i, leaf in enumerate(leaves) if id(leaf) in paths}
        self._indices = [
            i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and i not in self._passed
        ]
        outputs = [leaves[i] for i in self._indices]
        self.residual = residual
        self.complete = len(outputs) > 0 and all(isinstance(leaf, PLAIN) for leaf in self._constants)
        known = {self._indices.index(i): path for i, path in (continues or {}).items() if i in self._indices}
        self.streams = _match(call, outputs, known)
        uncut = not residual or all(stream.dim is None for stream in self.streams)
        self._bases = [stream.source or "" if residual else "" for stream in self.streams] if uncut else None
        self._first_latent = next((path for path in call.tensors if call.is_latent(path)), None)
        self.given = call.signature.picker([*(self.sources() if residual else ()), *self._passed.values()])
        given = self.given(call.args, call.kwargs).values()
        self._forms = _forms((*leaves, *given)) if self.complete else None

    def split(self, output: Any) -> list[Tensor]:
        """The output's tensors, in order, but for arguments that the module only hands on."""
        leaves = pytree.tree_leaves(output)
        return [leaves[i] for i in self._indices]

    def fits(self, call: Call, output: Any) -> bool:
        """Whether a computed call looks like the one learned from."""
        return self._alike(output, self.given(call.args, call.kwargs)) is not None

    def based_alike(self, output: Any, given: Mapping[str, Any]) -> list[Pair] | None:
        """`based`, of a call that looks like the one learned from; None where it does not.

        Args:
            output: what the module returned.
            given: the call's tensors, as the attribute `given` takes them.
        """
        leaves = self._alike(output, given)
        return None if leaves is None else self.based(given, map(leaves.__getitem__, self._indices))

    def _alike(self, output: Any, given: Mapping[str, Any]) -> Sequence[Any] | None:
        """The leaves of an output that looks, as its call does, like the one learned from."""
        flat = self._is_flat and type(output) is tuple  # what is no leaf in there has no form like one
        leaves = output if flat else self._leaves(output)
        if leaves is None or _forms((*leaves, *given.values())) != self._forms:
            return None
        if self._passed and any(leaves[i] is not given[path] for i, path in self._passed.items()):
            return None
        return leaves

    def _leaves(self, output: Any) -> Sequence[Any] | None:
        """Of an output of the structure learned."""
        if type(output) is not self._type:
            return None
        if isinstance(output, Tensor):
            return (output,)
        leaves, spec = pytree.tree_flatten(output)
        return leaves if spec == self._spec else None

    def join(self, outputs: Sequence[Tensor], tensors: Mapping[str, Tensor]) -> Any:
        """An output like the one learned from, made of other `outputs` and the call's own `tensors`."""
        if self._spec.is_leaf() and outputs:
            return outputs[0]
        leaves = list(self._constants)
        for index, path in self._passed.items():
            leaves[index] = tensors[path]
        for index, output in zip(self._indices, outputs, strict=True):
            leaves[index] = output
        return tuple(leaves) if self._is_flat else pytree.tree_unflatten(leaves, self._spec)

    def based(self, tensors: Mapping[str, Tensor], outputs: Iterable[Tensor]) -> list[Pair]:
        """What to store of a computed call: each output, and the base that it is to be a residual to."""
        if self._bases is not None:
            return [*zip(outputs, map(tensors.get, self._bases), strict=True)]
        return [
            (output, stream.base(tensors, output))
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
        corrections: Sequence[Correction] | None = None,
    ) -> list[Tensor]:
        """The outputs of a reused call.

        Args:
            tensors: the call's, to which residuals are added.
            features: of past calls, newest first.
            weights: one for each feature.
            corrections: one for each stream; None for none.
        """
        outputs = []
        for i, stream in enumerate(self.streams):
            past = [feature[i] for feature in features]
            if not stream.dtype.is_floating_point:
                outputs.append(values_of(past[0]).clone())
                continue
            base = None
            if self.residual and stream.source is not None:
                base = tensors[stream.source]
                if stream.dim is not None:
                    base = stream.base(tensors, values_of(past[0]))
            correction = NO_CORRECTION if corrections is None else corrections[i]
            outputs.append(extrapolate(past, weights, base, stream.dtype, correction))
        return outputs

    def corrected(
        self,
        tensors: Mapping[str, Tensor],
        outputs: Sequence[Tensor],
        own: float,
        features: Sequence[Sequence[Kept]],
        weights: Sequence[float],
    ) -> list[Tensor]:
        """Computed outputs, plus `own` times their features and a weighted sum of past `features`.

        What does not evolve a latent (a learned variance) stays as it is.
        """
        corrected, changes = [output.clone() for output in outputs], []
        for output, feature, past in zip(
            outputs, self.features(tensors, outputs), zip(*features, strict=True), strict=True
        ):
            if output.is_floating_point():
                output = extrapolate(past, weights, None, torch.float32).add_(feature, alpha=own)
            changes.append(output)
        for value, change in zip(self.evolved(corrected), self.evolved(changes), strict=True):
            if value.is_floating_point():
                value.add_(change)
        return corrected

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
        return [(s.dtype, self.residual and s.source is not None) for s in self.streams]

    def sources(self) -> set[str]:
        """Paths of the inputs that some output is measured against."""
        return {stream.source for stream in self.streams if stream.source is not None}


def _forms(values: Sequence[Any]) -> list[Any]:
    """Shapes and dtypes of tensors; type and value of anything else."""
    try:
        return [*map(_form, values)]  # called at every site, where nearly always all are tensors
    except AttributeError:
        return [_form(value) if isinstance(value, Tensor) else (type(value), value) for value in values]


def _match(call: Call, outputs: Sequence[Tensor], known: Mapping[int, str]) -> list[Stream]:
    """Pairs outputs with inputs: those that are known, then equal shapes, then latents that differ in one dimension.

    Pairing with an input that never changes does no harm: its residual is held like the output itself.
    """
    free = {
        path: t for path, t in call.tensors.items() if t.is_floating_point() and t.ndim >= 2 and t.numel() > 0
    }
    found: dict[int, Stream] = {}
    for i, path in known.items():
        if path in free and free[path].shape == outputs[i].shape and outputs[i].is_floating_point():
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
