"""Halves: whether a denoiser's calls hold both guidance passes as one batch."""

import torch

from diffcache.host.call import Call


class Halves:
    """What is known of one denoiser's calls over one run.

    Args:
        separable: rows of a batch can be computed by themselves.
    """

    def __init__(self, *, separable: bool) -> None:
        self.separable = separable
        self._alike: dict[int, bool] = {}

    def of(self, call: Call, tick: int, context: str | None) -> bool:
        """Whether a call holds two equal halves of latents, as it does at the run's first two ticks if they are two passes.

        Two images of one seed begin alike, and part after the first tick. Reads the device at these two ticks.
        """
        if context not in (None, "cond_uncond") or not self.separable:
            return False
        if len(self._alike) < 2 and tick not in self._alike and all(self._alike.values()):
            even = call.batched and call.divisible() and call.batch % 2 == 0
            self._alike[tick] = even and torch.equal(*call.latents[0].chunk(2))
        return all(self._alike.values())
