"""Runs of few steps: a speed-up that they cannot meet is refused, and for one that leaves few computed ticks a plain run is proposed."""

from diffcache.config import RunFacts
from diffcache.schedulers.errors import ConfigError


def refuse_beyond(speedup: float, num_ticks: int) -> None:
    """Refuses a speed-up that even one computed tick would miss.

    Raises:
        ConfigError: `speedup` is more than the number of ticks.
    """
    if speedup > num_ticks:
        rows = "or let rows= compute some tokens of a mask, a reference or an edit"
        if num_ticks == 1:
            raise ConfigError(
                f"speedup={speedup:g} cannot be met in one step, which is computed: leave it out, {rows}."
            )
        raise ConfigError(
            f"speedup={speedup:g} cannot be met in {num_ticks} steps, of which one at least is computed: ask for {num_ticks} at most, take "
            f"fewer steps, {rows}."
        )


def leaves(speedup: float, computed: int) -> str:
    """How many ticks a speed-up leaves, for a remark."""
    return (
        f"speedup={speedup:g} leaves {'one computed tick' if computed == 1 else f'{computed} computed ticks'}"
    )


def proposal(computed: int, run: RunFacts) -> str:
    """A plain run with as many ticks as are computed, for a remark."""
    ticks = "one tick" if computed == 1 else f"{computed} ticks"
    # Heun's method has two ticks in a step, and image-to-image leaves some out.
    steps = round(computed * run.asked / run.num_ticks) if run.asked and run.num_ticks else computed
    return f"a plain run of {ticks} may be as good, compare it (usually num_inference_steps={max(steps, 1)})"
