"""Taps: where in a denoiser a signal is measured."""

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from diffcache.discovery.site_names import FIRST_BLOCK
from diffcache.hooks.watcher import watched
from diffcache.host.call import latents_of
from diffcache.kernels.residual import store_residual
from diffcache.schedulers.errors import TargetError


@dataclass(frozen=True, slots=True)
class Tap:
    """What a signal is measured on.

    Attributes:
        unit: path of a unit ("time_embed"), or the first block of the stack.
        inside: path of a module inside that unit ("norm1"), whose output is measured. The unit is run up to this module
            first, and then again in full if it is computed. "": the unit itself is measured.
        of: the unit's "output", its "input", or the "change" from its input to its output, in its first stream.
        index: index of the tensor in the output.
    """

    unit: str = FIRST_BLOCK
    inside: str = ""
    of: Literal["output", "input", "change"] = "output"
    index: int = 0

    def modules(self, units: dict[str, nn.Module]) -> list[nn.Module]:
        """The modules inside units whose calls the tap has to watch."""
        blocks = [units[self.unit]] if self.unit in units else list(units.values())
        found = [dict(block.named_modules()).get(self.inside) for block in blocks] if self.inside else []
        return [module for module in found if module is not None]

    @property
    def is_ahead(self) -> bool:
        """It measures before the unit runs."""
        return bool(self.inside) or self.of == "input"

    def ahead(self, unit: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """What is measured before the unit runs: its input, or the output of the module inside it.

        Raises:
            TargetError: the unit does not call that module.
        """
        if self.of == "input":
            return latents_of(unit, args, kwargs)[:1]
        module = dict(unit.named_modules()).get(self.inside)
        try:
            with watched(_StopAt({id(module)})):
                type(unit).forward(unit, *args, **kwargs)  # eager, where the unit is compiled
        except _Reached as reached:
            return [self._one(reached.output)]
        raise TargetError(f"{type(unit).__name__} does not call a module {self.inside!r} to measure on.")

    def after(self, latents: list[Tensor], output: Any) -> list[Tensor]:
        """What is measured after the unit has run, given these latents: its output, or the change to it."""
        alike = (leaf for leaf in pytree.tree_leaves(output) if _continues(leaf, latents[:1]))
        evolved = None if self.of == "output" else next(alike, None)
        return [self._one(output) if evolved is None else store_residual(evolved, latents[0])]

    def _one(self, output: Any) -> Tensor:
        tensors = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
        return tensors[self.index]


def _continues(leaf: Any, latents: list[Tensor]) -> bool:
    """Whether an output has the shape of a latent and is another tensor, so that the unit has changed the latent to it."""
    return isinstance(leaf, Tensor) and any(leaf.shape == x.shape and leaf is not x for x in latents)


class _Reached(Exception):
    """Ends a unit's forward at the module inside it."""

    def __init__(self, output: Any) -> None:
        self.output = output


@dataclass
class _StopAt:
    """A watcher that runs the modules that it watches, and stops the forward at the first."""

    watches: Container[int]

    def unit(self, module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        raise _Reached(forward(*args, **kwargs))
