"""What the guidance passes of a tick have returned: kept for what looks at the step after them."""

from collections.abc import Iterator

from torch import Tensor

from diffcache.engine.branch import Branch
from diffcache.schedulers.steps import MODEL


class ReturnedOutputs:
    """Copies of the first stream of what each guidance pass of a tick has returned, with the name of its branch. Nothing is kept unless somebody asks.

    They are copies because loops may write the guided output into what a pass has returned.

    Attributes:
        is_kept: somebody asks.
    """

    def __init__(self) -> None:
        self.is_kept = False
        self._outputs: list[tuple[str, Tensor]] = []
        self._tick = -1

    def keep(self) -> None:
        """From now on, until it is stopped."""
        self.is_kept = True

    def stop(self) -> None:
        """Nobody asks any more."""
        self.is_kept = False
        self._outputs = []

    def begin_tick(self, tick: int) -> None:
        """A call at a tick begins. If no step has asked for what an earlier tick returned, none will ask for this one's."""
        if tick != self._tick and self._outputs:
            self.stop()
        self._tick = tick

    def add(self, branch: Branch, output: object) -> None:
        """A branch has returned this. It is left out where the whole denoiser is not what is cached."""
        store = branch.stores.get(MODEL)
        if store is not None and store.layout is not None:
            evolved = store.layout.evolved(store.layout.split(output))
            self._outputs += [(branch.name, first.clone()) for first in evolved[:1]]

    def take(self) -> list[tuple[str, Tensor]]:
        """What is kept, which is then dropped."""
        taken, self._outputs = self._outputs, []
        return taken

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor that is kept."""
        for _, output in self._outputs:
            yield output
