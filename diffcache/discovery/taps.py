"""Taps: where in a denoiser a signal is measured."""

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from diffcache.discovery.site_names import FIRST_BLOCK
from diffcache.hooks.watcher import watched
from diffcache.host.call import latents_of
from diffcache.host.leaves import leaves_of, tensors_of
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
        found = [self._inside_of(block) for block in blocks] if self.inside else []
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
        module = self._inside_of(unit)
        try:
            with watched(_StopAt({id(module)})):
                type(unit).forward(unit, *args, **kwargs)  # eager, where the unit is compiled
        except _Reached as reached:
            return [self._one(reached.output)]
        raise TargetError(f"{type(unit).__name__} does not call a module {self.inside!r} to measure on.")

    def changed(self, latents: list[Tensor], output: Any) -> list[int]:
        """Which of a unit's outputs may be the first latent, changed: by their shape. None where the output itself is measured."""
        if self.of == "output" or not latents:
            return []
        latent = latents[0]
        return [
            i
            for i, leaf in enumerate(leaves_of(output))
            if isinstance(leaf, Tensor) and leaf.shape == latent.shape and leaf is not latent
        ]

    def after(self, latents: list[Tensor], output: Any, changed: int | None) -> list[Tensor]:
        """What is measured after the unit has run, given these latents: its output, or the change to it.

        Args:
            latents: that the unit was given.
            output: of the unit.
            changed: which of the outputs is the first latent, changed; None where none is.
        """
        if changed is None:
            return [self._one(output)]
        return [store_residual(leaves_of(output)[changed], latents[0])]

    def _inside_of(self, unit: nn.Module) -> nn.Module | None:
        try:
            return unit.get_submodule(self.inside)
        except AttributeError:
            return None

    def _one(self, output: Any) -> Tensor:
        return tensors_of(output)[self.index]


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
