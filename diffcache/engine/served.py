"""Which denoisers a scope serves."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from diffcache.host.compiled import uncompiled
from diffcache.host.conventions import UNCONDITIONAL_DENOISER
from diffcache.host.network_facts import NetworkFacts
from diffcache.host.signature import Signature, signature_of


@dataclass(frozen=True, slots=True)
class Served:
    """A denoiser that a scope serves.

    Attributes:
        module: the denoiser, uncompiled.
        name: in the report.
        experts: how many denoisers of its class take turns in the target. One for the unconditional pass (Ideogram 4) does not count.
        signature: of its forward.
        network: what is known of its modules and parameters.
    """

    module: nn.Module
    name: str
    experts: int
    signature: Signature
    network: NetworkFacts


def served_by_identity(
    denoisers: Mapping[str, nn.Module], facts: Mapping[str, NetworkFacts]
) -> dict[int, Served]:
    """Denoisers, compiled or not, by identity, and by that of the modules that `torch.compile` has wrapped around them.

    `facts` are those of the denoisers, under the same names.
    """
    plain = {name: uncompiled(module) for name, module in denoisers.items()}
    experts = Counter(
        type(module).__name__ for name, module in plain.items() if not name.startswith(UNCONDITIONAL_DENOISER)
    )
    served = {}
    for name, module in plain.items():
        count = max(experts[type(module).__name__], 1)
        one = Served(module, name, count, signature_of(module), facts[name])
        served[id(module)] = served[id(denoisers[name])] = one
    return served
