"""Streams: the tensors in a module's output, each matched with the input that it changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from diffcache.host.call import Call


@dataclass(frozen=True, slots=True)
class Stream:
    """One output tensor, and the input that it is a residual to.

    Attributes:
        source: path of that input among the call's tensors; None if no input matches, or the output is not floating.
        dim: the one dimension in which the shapes differ; None if they are equal. An image-to-video denoiser takes more
            channels than it returns, one with learned sigma returns more than it takes.
        size: the smaller of the two sizes in `dim`.
        dtype: of the output.
        learns_variance: the output has channels that the input does not have.
    """

    source: str | None
    dim: int | None
    size: int
    dtype: torch.dtype
    learns_variance: bool = False

    def cut(self, tensor: Tensor) -> Tensor:
        """The part of an input or output that both have: the first `size` entries in `dim`."""
        return tensor if self.dim is None else tensor.narrow(self.dim, 0, self.size)

    def beyond(self, tensor: Tensor) -> Tensor:
        """The part of an output that the input does not have: a learned variance."""
        assert self.dim is not None
        return tensor.narrow(self.dim, self.size, tensor.shape[self.dim] - self.size)

    def base(self, tensors: Mapping[str, Tensor], like: Tensor) -> Tensor | None:
        """The input among a call's tensors, cut or padded with zeros to the shape of `like`; None if there is none."""
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


def matched(call: Call, outputs: Sequence[Tensor], known: Mapping[int, str]) -> list[Stream]:
    """Finds an input for each output: first the known ones, then of equal shape, then latents that differ in one dimension.

    A wrong match with an input that never changes does no harm: then the residual changes as the output does.
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
                    given, made = tensor.shape[dim], output.shape[dim]
                    found[i] = Stream(path, dim, min(given, made), output.dtype, made > given)
                else:
                    continue
                del free[path]
                break
    return [found.get(i, Stream(None, None, 0, output.dtype)) for i, output in enumerate(outputs)]


def _differs_in(a: Tensor, b: Tensor) -> int | None:
    """The one dimension in which two shapes differ; None if there are several, or it is the batch."""
    if a.ndim != b.ndim or a.shape[:1] != b.shape[:1] or b.numel() == 0:
        return None
    dims = [i for i in range(1, a.ndim) if a.shape[i] != b.shape[i]]
    return dims[0] if len(dims) == 1 else None
