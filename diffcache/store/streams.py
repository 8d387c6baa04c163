"""Layouts: how a module's output splits into streams, in what form these are stored, and how they are put together again."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from diffcache.host.call import Call
from diffcache.host.structure import PLAIN
from diffcache.kernels.extrapolate import NO_CORRECTION, Correction, extrapolate
from diffcache.kernels.residual import store_residual
from diffcache.noise_schedulers.levels import VELOCITY, Parametrisation
from diffcache.prediction.hindsight import trusted
from diffcache.store.formats import Pair, values_of
from diffcache.store.matching import Stream, matched
from diffcache.store.placement import Kept

Basis = Literal["output", "residual", "velocity"]
"""What is stored of an output: the output itself, what it adds to its input, or the velocity that follows from both."""


@dataclass(frozen=True, slots=True)
class Past:
    """Past features as a format reads them, and the weights of their weighted sum.

    Attributes:
        features: newest first, a tensor for each stream.
        weights: one for each feature.
        newest: the weights that give the newest feature, held.
    """

    features: list[Sequence[Kept]]
    weights: Sequence[float]
    newest: Sequence[float] = ()


_form = attrgetter("shape", "dtype")


class Layout:
    """How a module's output splits into streams, learned from a computed call; it holds for all calls that look alike.

    Args:
        call: the computed call.
        output: what the module returned: a tensor, or tensors in tuples, lists, dicts or output classes.
        basis: what is stored.
        continues: path of the argument that an output is known to continue, by index of the output (see `Site`).

    Attributes:
        streams: one for each tensor in the output, except arguments that the module returns unchanged.
        basis: as given.
        complete: there are streams, and no other part of the output can hold a tensor.
        learns_variance: some stream does, and holds it.
        of_first_latent: index of the stream that continues the call's first latent; 0 where none is known to.
        given: takes the arguments that `pairs`, `predict` and `join` need out of a call's arguments.
    """

    def __init__(
        self, call: Call, output: Any, *, basis: Basis, continues: Mapping[int, str] | None = None
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
        self.basis: Basis = basis
        self.complete = len(outputs) > 0 and all(isinstance(leaf, PLAIN) for leaf in self._constants)
        known = {self._indices.index(i): path for i, path in (continues or {}).items() if i in self._indices}
        self.streams = matched(call, outputs, known)
        residual = basis == "residual"
        self.learns_variance = basis == "velocity" and any(s.learns_variance for s in self.streams)
        uncut = not residual or all(stream.dim is None for stream in self.streams)
        self._bases = [stream.source or "" if residual else "" for stream in self.streams] if uncut else None
        self._first_latent = next((path for path in call.tensors if call.is_latent(path)), None)
        continued = (i for i, s in enumerate(self.streams) if s.source == self._first_latent is not None)
        self.of_first_latent = next(continued, 0)
        needed = () if basis == "output" else self.sources()
        self.given = call.signature.picker([*needed, *self._passed.values()])
        given = self.given(call.args, call.kwargs).values()
        self._forms = _forms((*leaves, *given)) if self.complete else None

    def split(self, output: Any) -> list[Tensor]:
        """The output's tensors, one for each stream."""
        leaves = pytree.tree_leaves(output)
        return [leaves[i] for i in self._indices]

    def fits(self, call: Call, output: Any) -> bool:
        """Whether a computed call looks like the one that the layout was learned from."""
        return self._alike(output, self.given(call.args, call.kwargs)) is not None

    def pairs_if_fits(
        self, output: Any, given: Mapping[str, Any], bases: Mapping[str, Tensor] | None = None
    ) -> list[Pair] | None:
        """`pairs` of a call that the layout fits; None if it does not fit.

        Args:
            output: what the module returned.
            given: the call's tensors, as the attribute `given` takes them.
            bases: copies of what streams are residuals to, where the module may have overwritten it; None: `given`.
        """
        leaves, bases = self._alike(output, given), given if bases is None else bases
        return None if leaves is None else self.pairs(bases, map(leaves.__getitem__, self._indices))

    def _alike(self, output: Any, given: Mapping[str, Any]) -> Sequence[Any] | None:
        """The leaves of a call's output, if the layout fits the call; else None."""
        flat = self._is_flat and type(output) is tuple  # an item that is no leaf has a form unlike any leaf
        leaves = output if flat else self._leaves(output)
        if leaves is None or _forms((*leaves, *given.values())) != self._forms:
            return None
        if self._passed and any(leaves[i] is not given[path] for i, path in self._passed.items()):
            return None
        return leaves

    def _leaves(self, output: Any) -> Sequence[Any] | None:
        """The leaves of an output of the learned structure; None of any other."""
        if type(output) is not self._type:
            return None
        if isinstance(output, Tensor):
            return (output,)
        leaves, spec = pytree.tree_flatten(output)
        return leaves if spec == self._spec else None

    def join(self, outputs: Sequence[Tensor], tensors: Mapping[str, Tensor]) -> Any:
        """An output of the learned structure.

        Args:
            outputs: one tensor for each stream.
            tensors: the call's, of which the module returns some unchanged.
        """
        if self._spec.is_leaf() and outputs:
            return outputs[0]
        leaves = list(self._constants)
        for index, path in self._passed.items():
            leaves[index] = tensors[path]
        for index, output in zip(self._indices, outputs, strict=True):
            leaves[index] = output
        return tuple(leaves) if self._is_flat else pytree.tree_unflatten(leaves, self._spec)

    def pairs(
        self, tensors: Mapping[str, Tensor], outputs: Iterable[Tensor], at: Parametrisation = VELOCITY
    ) -> list[Pair]:
        """What to store of a computed call: each stream's output, and the input that it is stored as a residual to.

        Where velocities are stored these stand in place of the outputs.

        Args:
            tensors: the call's.
            outputs: what was computed, one tensor for each stream.
            at: what the outputs are, for velocities.
        """
        if self.basis == "velocity" and at != VELOCITY:
            both = zip(self.streams, outputs, strict=True)
            return [(_velocity(stream, output, tensors, at), None) for stream, output in both]
        if self._bases is not None:
            return [*zip(outputs, map(tensors.get, self._bases), strict=True)]
        return [
            (output, stream.base(tensors, output))
            for stream, output in zip(self.streams, outputs, strict=True)
        ]

    def features(
        self, tensors: Mapping[str, Tensor], outputs: Sequence[Tensor], at: Parametrisation = VELOCITY
    ) -> tuple[Tensor, ...]:
        """The features of a computed call, before a format rounds them."""
        return tuple(store_residual(output, base) for output, base in self.pairs(tensors, outputs, at))

    def predict(
        self,
        tensors: Mapping[str, Tensor],
        past: Past,
        corrections: Sequence[Correction] | None = None,
        at: Parametrisation = VELOCITY,
    ) -> list[Tensor]:
        """The outputs of a reused call.

        Args:
            tensors: the call's; residuals are added to them.
            past: what is stored, and its weights.
            corrections: one for each stream; None: nothing is corrected.
            at: what the outputs are, where velocities are stored; `VELOCITY` gives the velocities.
        """
        outputs = []
        for i, stream in enumerate(self.streams):
            kept = [feature[i] for feature in past.features]
            if not stream.dtype.is_floating_point:
                outputs.append(values_of(kept[0]).clone())
                continue
            base, scale = None, 1.0
            if stream.source is not None and self.basis == "residual":
                base = tensors[stream.source]
                if stream.dim is not None:
                    base = stream.base(tensors, values_of(kept[0]))
            elif stream.source is not None and self.basis == "velocity" and at != VELOCITY:
                scale = at.of_velocity
                base = _scaled(stream.base(tensors, values_of(kept[0])), at.of_input)
            correction = NO_CORRECTION if corrections is None else corrections[i]
            weights = past.weights if scale == 1.0 else [scale * weight for weight in past.weights]
            output = extrapolate(kept, weights, base, stream.dtype, correction)
            if self.learns_variance and stream.learns_variance:
                held = extrapolate(kept, past.newest, None, stream.dtype)
                stream.beyond(output).copy_(stream.beyond(held))
            outputs.append(output)
        return outputs

    def corrected(
        self,
        outputs: Sequence[Tensor],
        pairs: Sequence[Pair],
        own: float,
        past: Past,
        scale: float = 1.0,
        *,
        doubted: bool = True,
    ) -> list[Tensor]:
        """Computed outputs, plus `own` times what is stored of them, plus the weighted sum of past features.

        Only the parts that `evolved` gives are changed, so a learned variance is not.

        Args:
            outputs: the computed ones.
            pairs: what is stored of them.
            own: its weight.
            past: earlier features, and their weights.
            scale: how much an output changes with what is stored of it.
            doubted: what is added shrinks where it is surprisingly large (see `trusted`).
        """
        corrected, changes = [output.clone() for output in outputs], []
        for output, pair, kept in zip(outputs, pairs, zip(*past.features, strict=True), strict=True):
            if output.is_floating_point():
                feature = store_residual(*pair)
                output = extrapolate(kept, past.weights, None, torch.float32).add_(feature, alpha=own)
            changes.append(output)
        own_parts = self.evolved([output for output, _ in pairs])
        for value, change, of in zip(self.evolved(corrected), self.evolved(changes), own_parts, strict=True):
            if value.is_floating_point():
                value.add_(trusted(change, scale * of.float()) if doubted else change)
        return corrected

    def latents(self, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        """The inputs on which signals are measured: of each stream's input the part that the output has too.

        If no stream has an input, it is the first latent.
        """
        paired = [stream.cut(tensors[stream.source]) for stream in self.streams if stream.source is not None]
        return paired or ([tensors[self._first_latent]] if self._first_latent else [])

    def evolved(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs that belong to `latents`, cut to the same shapes; the first output if no stream has an input."""
        pairs = zip(self.streams, outputs, strict=True)
        paired = [stream.cut(output) for stream, output in pairs if stream.source is not None]
        return paired or ([outputs[0]] if self._first_latent else [])

    def kinds(self) -> list[tuple[torch.dtype, bool]]:
        """For each stream its dtype, and whether it is stored as a residual."""
        return [(s.dtype, self.basis == "residual" and s.source is not None) for s in self.streams]

    def sources(self) -> set[str]:
        """Paths of the inputs that streams are residuals to."""
        return {stream.source for stream in self.streams if stream.source is not None}


def _velocity(stream: Stream, output: Tensor, tensors: Mapping[str, Tensor], at: Parametrisation) -> Tensor:
    """The velocity of a computed output, in the output's dtype; a learned variance is left as it is."""
    if stream.source is None or not output.is_floating_point():
        return output
    own, given = stream.cut(output), stream.cut(tensors[stream.source])
    wide = own.to(torch.promote_types(own.dtype, torch.float32), copy=True)
    velocity = wide.sub_(given, alpha=at.of_input).div_(at.of_velocity).to(output.dtype)
    if not stream.learns_variance:
        return velocity
    whole = output.clone()
    stream.cut(whole).copy_(velocity)
    return whole


def _scaled(base: Tensor | None, factor: float) -> Tensor | None:
    """fp32, so that it is rounded only once, as part of the sum."""
    return None if base is None or factor == 0 else base.float() * factor


def _forms(values: Sequence[Any]) -> list[Any]:
    """Shape and dtype of each tensor; type and value of anything else."""
    try:
        return [
            *map(_form, values)
        ]  # the fast way: this runs at every site, and nearly always all are tensors
    except AttributeError:
        return [_form(value) if isinstance(value, Tensor) else (type(value), value) for value in values]
