"""What a report says of a noise scheduler that adds fresh noise at its steps."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FreshNoise:
    """A run's noise scheduler drew noise at its steps, besides the noise that the run began with.

    Attributes:
        source: what added it.
        instead: what adds none.
    """

    source: str
    instead: str

    @property
    def advice(self) -> str:
        """Why nothing was reused, and what to do."""
        return f"reuse is not worth it with {self.source}, which adds fresh noise at each step: use {self.instead}"

    @property
    def obstacle(self) -> str:
        """Why errors of earlier ticks cannot be corrected (see `Influence`)."""
        return f"{self.source} adds noise at its steps"

    @property
    def cost(self) -> str:
        """What reuse costs where it was done all the same."""
        return (
            f"{self.source} adds fresh noise at each step, and reused outputs were computed before that noise: expect a "
            f"result that differs visibly from the full run's, or use {self.instead}"
        )
