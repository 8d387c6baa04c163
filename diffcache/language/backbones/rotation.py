"""Whether a model rotates queries and keys as the kernel does: both rotate the same numbers, and are compared."""

import torch
from torch import Tensor

from diffcache.kernels.rope_scatter import rope_scatter, signed
from diffcache.language.backbones.base import Backbone, Rotary


def kernel_tables(net: Backbone, tables: Rotary) -> Rotary | None:
    """The model's rotary tables as `rope_scatter` takes them; None where its results differ from the model's in any bit.

    Args:
        tables: cosine and sine [1, S, D or less], of all positions.
    """
    cos, sin = tables[0], signed(tables[1])
    length = cos.shape[1]
    heads = torch.arange(length * net.head_dim, device=cos.device).cos().view(1, 1, length, -1).to(net.dtype)
    keys, values = torch.empty_like(heads), torch.empty_like(heads)
    queries = rope_scatter(heads, heads, heads, cos, sin, None, keys, values)
    own = net.rotate(heads, heads, tables)
    return (cos, sin) if all(map(_same, own, (queries, keys))) else None


def _same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)
