"""The keys and values of one attention call in one guidance pass, in every format and place that features have.

What they are kept for is the matter of whoever keeps them: tokens that are not computed at a tick, or the past of a video.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from diffcache.kernels.extrapolate import extrapolate
from diffcache.schedulers.steps import Decision, Step
from diffcache.store.formats import forget_on_error
from diffcache.store.rings import Store, StoreSetup


class KeyValues(Store):
    """Keys and values of the newest computed ticks, after norms and positions: [batch, heads, tokens, channels] each.

    Args:
        setup: what it shares with the run's other stores; its predictor extrapolates.
    """

    def __init__(self, setup: StoreSetup) -> None:
        super().__init__(setup)
        self.dtype = torch.float32
        self.empty(1)

    def put(self, tick: int, key: Tensor, value: Tensor) -> None:
        """Keeps what was computed at a tick."""
        self.dtype = key.dtype
        self.push(tick, 0, [(key, None), (value, None)])

    def get(self, decision: Decision, step: Step) -> tuple[Tensor, Tensor]:
        """Keys and values as they would be at a step, held or extrapolated; new tensors, which may be written to."""
        setup, ring = self.setup, self.rings[0]
        features, weights = setup.format.read(ring, setup.weights(decision, ring, step))
        try:
            key, value = (
                extrapolate(kept, weights, None, self.dtype) for kept in zip(*features, strict=True)
            )
        except BaseException as error:
            forget_on_error(features, error)
            raise
        return key, value

    def kinds(self) -> Sequence[tuple[torch.dtype, bool]]:
        return [(self.dtype, False)] * 2
