"""What is known of an operation before it runs, by its schema."""

import re
from functools import cache
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from diffcache.discovery.flops import may_have_flops

_PLAIN = re.compile(r"(Optional\[|List\[)*(int|float|bool|str|complex|number|Device|Generator)\]*")
"""Types in schemas whose values are and hold no tensors."""


class Effect(NamedTuple):
    """Of an operation.

    Attributes:
        is_view: it reads no memory and writes none: it returns views of its first argument.
        given: index and name of each argument that may be or hold a tensor; None: any may.
        writes: index and name of each argument that it writes to.
        has_out: these are where it puts its result (`out=`).
        has_flops: it may have floating-point operations that count.
        tells_content: what it returns depends on a tensor's content: a number, or a tensor of a size that is not known before.
        is_composite: it is made of other operations. Torch takes it apart before a dispatch mode sees it, but not in inference mode.
    """

    is_view: bool
    given: tuple[tuple[int, str], ...] | None
    writes: tuple[tuple[int, str], ...]
    has_out: bool
    has_flops: bool
    tells_content: bool
    is_composite: bool


@cache
def effect_of(func: Any) -> Effect:
    """Of an operator, by its schema."""
    if not isinstance(func, OpOverload):
        return Effect(False, None, (), False, False, True, False)
    arguments, returns = func._schema.arguments, func._schema.returns
    aliased = [argument.alias_info for argument in arguments]
    given = tuple((i, a.name) for i, a in enumerate(arguments) if not _PLAIN.fullmatch(str(a.type)))
    writes = tuple(
        (i, a.name) for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write
    )
    views = bool(arguments) and aliased[0] is not None and not any(aliased[1:])
    is_view = views and not writes and all(one.alias_info is not None for one in returns)
    tells = torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags
    has_out = any(arguments[i].is_out for i, _ in writes)
    name = func.name()  # type: ignore[no-untyped-call]
    is_composite = torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
    return Effect(is_view, given, writes, has_out, may_have_flops(func), tells, is_composite)
