"""Tapped: what a tap measured in a first call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from diffcache.discovery.unit_recorder import UnitCall
from diffcache.host.call import Call


@dataclass
class Tapped:
    """What the tap measured. Which output of the unit is its latent, changed, is known when the next block is called.

    Attributes:
        unit: on which it measured.
        seen: what was measured, by which output is taken for the latent; by None where none is.
        latents: of its outputs, those that the next block was given as its latent.
        others: those that it was given as something else.
        is_followed: a block has been called after it.
    """

    unit: UnitCall
    seen: Mapping[int | None, list[Tensor]]
    latents: Sequence[int] = ()
    others: Sequence[int] = ()
    is_followed: bool = False

    def followed_by(self, unit: UnitCall, call: Call) -> None:
        """The next block is called."""
        self.is_followed = True
        given = {(storage, shape): path == call.latent for path, storage, shape in unit.inputs}
        continued = {i: given.get(form) for i, form in enumerate(self.unit.outputs) if form is not None}
        self.latents = [i for i, is_latent in continued.items() if is_latent]
        self.others = [i for i, is_latent in continued.items() if is_latent is False]

    @property
    def chosen(self) -> tuple[list[Tensor], int | None]:
        """What counts, and by which output: that which is the next block's latent, else the first that is nothing else of it."""
        outputs = [
            *(i for i in self.seen if i in self.latents),
            *(i for i in self.seen if i not in self.others),
            *self.seen,
        ]
        return self.seen[outputs[0]], outputs[0]
