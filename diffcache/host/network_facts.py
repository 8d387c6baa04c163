"""What a run wants to know of a network's modules and parameters: gone through once, and kept with the network."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import ReferenceType, ref

from torch import nn

from diffcache.host.compiled import holds_compiled, uncompiled
from diffcache.host.components import has_foreign_hook
from diffcache.host.kept_with import KeptWith
from diffcache.host.structure import PROCESSOR, modules_inside, structure_of
from diffcache.host.weight_formats import quantization_of


@dataclass(frozen=True, slots=True)
class NetworkFacts:
    """What is known of a network, as long as it is not built otherwise.

    Attributes:
        structure: `structure_of` the network.
        parameters: their number.
        quantization: of its weights (`quantization_of`).
        holds_compiled: it or a module inside it is compiled.
        has_foreign_hook: Diffusers' own caching is on it or on a module inside it.
        attentions: modules inside that have an attention processor.
    """

    structure: int
    parameters: int
    quantization: str | None
    holds_compiled: bool
    has_foreign_hook: bool
    attentions: tuple[ReferenceType[nn.Module], ...]

    @property
    def form(self) -> tuple[int, tuple[type, ...]]:
        """The structure, and the attention processors as they are now: pipelines set these after their loop began."""
        found = (attention() for attention in self.attentions)
        return self.structure, tuple(type(one.__dict__.get(PROCESSOR)) for one in found if one is not None)

    def held_by_processors(self) -> Iterator[Any]:
        """The attributes of the attention processors as they are now. Most have none."""
        for attention in self.attentions:
            processor = getattr(attention(), PROCESSOR, None)
            yield from getattr(processor, "__dict__", {}).values()


_known: KeptWith[NetworkFacts] = KeptWith(1)


def facts_of_network(network: nn.Module) -> NetworkFacts:
    """The facts of a network as it is now."""
    structure = structure_of(network)
    found = _known.get(network, structure)
    if found is None:
        parameters = sum(p.numel() for p in network.parameters())
        found = NetworkFacts(
            structure,
            parameters,
            quantization_of(network),
            holds_compiled(network),
            has_foreign_hook(network),
            tuple(ref(module) for module in modules_inside(network) if hasattr(module, PROCESSOR)),
        )
        _known.put(network, structure, found)
    return found


def facts_of_networks(networks: Mapping[str, nn.Module]) -> dict[str, NetworkFacts]:
    """The facts of several networks, compiled or not, under the same names."""
    return {name: facts_of_network(uncompiled(network)) for name, network in networks.items()}
