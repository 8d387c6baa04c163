"""Units: the modules of a denoiser that can be skipped, found by the denoiser's structure.

A denoiser's units are the members of its block lists, and the other children beside those lists: what its forward calls
one after another. Inside a block, its sub-layers (attentions and feed-forwards) are units too.
"""

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache

from torch import nn

from diffcache.host.compiled import uncompiled
from diffcache.host.structure import children_of, modules_inside

CONTAINERS = (nn.ModuleList, nn.ModuleDict)
QUERIES = frozenset(
    [
        "to_q",
        "to_query",
        "q_proj",
        "q_linear",
        "linear_q",
        "wq",
        "query",
        "to_qkv",
        "to_qkv_mlp_proj",
        "qkv",
        "img_qkv_proj",
        "img_attn_qkv",
    ]
)
"""Names of an attention's projection to queries, alone or together with others."""
FEED_FORWARDS = re.compile("feedforward|mlp|glu|ffn", re.IGNORECASE)


def blocks_of(denoiser: nn.Module) -> dict[str, nn.Module]:
    """The denoiser's top-level units by path, in the order of registration."""
    owner, prefix = _owner(denoiser, "")
    return {f"{prefix}{path}": module for path, module in _flat(owner)}


def block_counts(denoiser: nn.Module) -> dict[str, int]:
    """The number of blocks in each of the denoiser's lists, by the list's path."""
    return dict(Counter(path.rpartition(".")[0] for path in blocks_of(denoiser) if is_list_member(path)))


def is_flat(denoiser: nn.Module) -> bool:
    """Whether the blocks of each list are alike, but for one at most, and hold no lists of layers: no UNet is like that."""
    lists: dict[str, list[nn.Module]] = {}
    for path, block in blocks_of(denoiser).items():
        if is_list_member(path):
            lists.setdefault(path.rpartition(".")[0], []).append(block)
    blocks = [block for members in lists.values() for block in members]
    layered = any(_is_block_list(child) for block in blocks for child in block.children())
    return not layered and all(map(_are_alike, lists.values()))


def layers_of_blocks(denoiser: nn.Module) -> dict[str, nn.Module]:
    """The members of lists inside blocks, by path: the resnets, attentions and samplers of a UNet's blocks."""
    return {
        f"{path}.{name}.{i}": layer
        for path, block in blocks_of(denoiser).items()
        for name, child in block.named_children()
        if _is_block_list(child)
        for i, layer in child.named_children()
    }


def sub_layers_of_blocks(denoiser: nn.Module) -> dict[str, nn.Module]:
    """The attentions and feed-forwards of all blocks, by path."""
    return {
        f"{path}.{name}": layer
        for path, block in blocks_of(denoiser).items()
        for name, layer in _sub_layers_of(block).items()
    }


def bare_parts_of_blocks(denoiser: nn.Module) -> dict[str, nn.Module]:
    """The children of all blocks that have a bare feed-forward, by path.

    A bare feed-forward is no module: its projections are children of the block itself, as in Flux's single-stream block
    and in torch's decoder layer. Such a block has an attention, no feed-forward module, and at least two linear layers.
    """
    found: dict[str, nn.Module] = {}
    for path, block in blocks_of(denoiser).items():
        children = children_of(block)
        parts = children.values()
        if sum(isinstance(part, nn.Linear) for part in parts) < 2:
            continue
        if any(map(is_attention, parts)) and not any(map(is_feed_forward, parts)):
            found.update({f"{path}.{name}": child for name, child in children.items()})
    return found


def is_sub_layer(module: nn.Module) -> bool:
    return is_attention(module) or is_feed_forward(module)


def is_attention(module: nn.Module) -> bool:
    """Whether it is torch's own attention, or has a projection to queries."""
    children = module.__dict__["_modules"]  # `getattr` takes as long as the rest of discovery
    if "_orig_mod" in children:
        children = uncompiled(module).__dict__["_modules"]
    projects = not QUERIES.isdisjoint(children) and any(children.get(name) is not None for name in QUERIES)
    return projects or isinstance(module, nn.MultiheadAttention)


def is_feed_forward(module: nn.Module) -> bool:
    """Whether its class name says so, and it holds at least two projections and no attention."""
    if not _is_named_feed_forward(type(module).__name__):
        return False
    parts = modules_inside(module)
    projections = {id(part) for part in parts if isinstance(part, (nn.Linear, nn.Conv1d, nn.Conv2d))}
    return len(projections) >= 2 and not any(map(is_attention, parts))


@cache
def _is_named_feed_forward(name: str) -> bool:
    return FEED_FORWARDS.search(name) is not None


def is_attention_or_projection(module: nn.Module) -> bool:
    """Whether a block's child does real work, unlike the norms and activations around it."""
    return is_attention(module) or isinstance(module, nn.Linear)


def is_list_member(path: str) -> bool:
    """Whether the module at `path` is a member of a list."""
    return path.rsplit(".", 1)[-1].isdigit()


def _are_alike(blocks: list[nn.Module]) -> bool:
    """Whether the blocks have parameters of the same names and shapes; one of three or more may differ (SD3's last)."""
    shapes = Counter(
        (type(block), tuple((name, tuple(p.shape)) for name, p in block.named_parameters()))
        for block in blocks
    )
    most = max(shapes.values())
    return most == len(blocks) or most == len(blocks) - 1 >= 2


def _sub_layers_of(block: nn.Module) -> dict[str, nn.Module]:
    """The outermost attentions and feed-forwards of a block, by path."""
    found: dict[str, nn.Module] = {}
    for name, child in children_of(block).items():
        if not child.__dict__["_modules"]:
            continue  # a sub-layer has parts
        if is_sub_layer(child):
            found[name] = child
        else:
            found.update({f"{name}.{path}": module for path, module in _sub_layers_of(child).items()})
    return found


def _owner(module: nn.Module, prefix: str) -> tuple[nn.Module, str]:
    """The module that holds the block lists: the denoiser or a module inside it; and the prefix of its children's paths."""
    if any(_is_block_list(child) for child in module.children()):
        return module, prefix
    for name, child in module.named_children():
        if any(_is_block_list(part) for part in child.modules()):
            return _owner(child, f"{prefix}{name}.")
    return module, prefix


def _is_block_list(module: nn.Module) -> bool:
    """Whether it is a list with a member that has children of its own."""
    return isinstance(module, nn.ModuleList) and any(
        any(True for _ in member.children()) for _, member in module.named_children()
    )


def _flat(owner: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """A module's children by name; of a list or dict, its members instead."""
    for name, child in children_of(owner).items():
        if isinstance(child, CONTAINERS):
            yield from ((f"{name}.{path}", member) for path, member in _flat(child))
        else:
            yield name, child
