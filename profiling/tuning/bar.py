"""The bar of a search: how many renders it will take, and how long, as soon as the first has been timed."""

from tqdm import tqdm

from diffcache.profiling.recording.processes import is_first


class Bar:
    """Shows one overall progress bar on the terminal, and first an estimate.

    Args:
        renders: about how many there will be.
        work: of how many full runs they are the work.
        shown: False: nothing is shown.
    """

    def __init__(self, renders: int, work: float, *, shown: bool) -> None:
        self.work = work
        self.shown = shown and is_first()
        self._timed = False
        self._bar = tqdm(total=renders, desc="tune", unit="render", disable=None if self.shown else True)
        self._say(f"tune: about {renders} renders, the work of {work:.0f} full runs.")

    def rendered(self, seconds: float) -> None:
        if not self._timed:
            minutes = seconds * self.work / 60
            self._say(
                f"tune: the first took {seconds:.1f} s, so about {max(minutes, 0.1):.1f} minutes in all."
            )
            self._timed = True
        self._advance()

    def found(self) -> None:
        self._advance()

    def close(self) -> None:
        """Ends the bar."""
        self._bar.close()

    def _advance(self) -> None:
        self._bar.total = max(self._bar.total or 0, self._bar.n + 1)
        self._bar.update()

    def _say(self, line: str) -> None:
        if self.shown:
            tqdm.write(line)
