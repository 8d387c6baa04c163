"""What a run wants to know of a network's modules and parameters: gone through once, and kept with the network."""

from dataclasses import dataclass

from torch import nn

from diffcache.host.compiled import holds_compiled
from diffcache.host.kept_with import KeptWith
from diffcache.host.structure import structure_of
from diffcache.host.weight_formats import quantization_of


@dataclass(frozen=True, slots=True)
class NetworkFacts:
    """What is known of a network, as long as it is not built otherwise.

    Attributes:
        parameters: their number.
        quantization: of its weights (`quantization_of`).
        holds_compiled: it or a module inside it is compiled.
    """

    parameters: int
    quantization: str | None
    holds_compiled: bool


_known: KeptWith[NetworkFacts] = KeptWith(1)


def facts_of_network(network: nn.Module) -> NetworkFacts:
    """The facts of a network as it is now."""
    structure = structure_of(network)
    found = _known.get(network, structure)
    if found is None:
        parameters = sum(p.numel() for p in network.parameters())
        found = NetworkFacts(parameters, quantization_of(network), holds_compiled(network))
        _known.put(network, structure, found)
    return found
