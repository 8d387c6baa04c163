"""What a network is made of now, as one number: it tells whether what was learned of the network still holds."""

from torch import nn

PROCESSOR = "processor"
"""The attribute of Diffusers' attentions that computes them."""

PLAIN = (bool, int, float, str, type(None))


def structure_of(network: nn.Module) -> int:
    """A number that is another one as soon as the network is built otherwise.

    It follows the modules inside, the types of their parameters (quantised or not), their attention processors, the
    replaced `forward` of each, Diffusers' hooks on them, which modules are compiled, and the plain values among the
    network's own attributes. It reads no tensor, and takes 0.3 ms for 1,300 modules, 0.8 ms after other work.
    """
    parts: list[object] = [value for value in network.__dict__.values() if isinstance(value, PLAIN)]
    found: list[nn.Module | None] = [network]
    for module in found:
        parts.append(id(module))
        if module is None:
            continue
        attributes = module.__dict__
        if children := attributes["_modules"]:
            parts.append(len(children))
            found += children.values()
        if parameters := attributes["_parameters"]:
            parts += map(type, parameters.values())
        if PROCESSOR in attributes:
            parts.append(type(attributes[PROCESSOR]))
        if "forward" in attributes:
            parts.append(id(attributes["forward"]))
        if "_diffusers_hook" in attributes:
            parts += map(type, attributes["_diffusers_hook"].hooks.values())
        if attributes.get("_compiled_call_impl") is not None:
            parts.append("compiled")
    return hash(tuple(parts))


def children_of(module: nn.Module) -> dict[str, nn.Module]:
    """As `dict(module.named_children())`: a shared child once. Several times as fast."""
    children = module.__dict__["_modules"]
    if not children:
        return {}
    first = {id(child): name for name, child in reversed(children.items()) if child is not None}
    return {name: child for name, child in children.items() if first.get(id(child)) == name}


def modules_inside(network: nn.Module) -> list[nn.Module]:
    """A network and all modules inside it, a shared one as often as it is used. Five times as fast as `modules()`."""
    found, todo = list[nn.Module](), [network]
    while todo:
        module = todo.pop()
        found.append(module)
        children = module.__dict__["_modules"]
        if children:
            todo += [child for child in children.values() if child is not None]
    return found
