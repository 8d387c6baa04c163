"""Runs of few steps: a speed-up that they cannot meet is refused."""

from diffcache.schedulers.errors import ConfigError


def refuse_beyond(speedup: float, num_ticks: int) -> None:
    """Refuses a speed-up that even one computed tick would miss.

    Raises:
        ConfigError: `speedup` is more than the number of ticks.
    """
    if speedup > num_ticks:
        steps = "one step" if num_ticks == 1 else f"{num_ticks} steps"
        asked = "leave it out" if num_ticks == 1 else f"ask for {num_ticks} at most"
        raise ConfigError(
            f"speedup={speedup:g} cannot be met in {steps}, of which one at least is computed: {asked}, take fewer steps, or let rows= "
            "compute some tokens of a mask, a reference or an edit."
        )
