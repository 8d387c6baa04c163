"""At which shares of the full run's compute contenders are compared."""

BUDGETS = (1.5, 2.0, 3.0, 4.0)
FEW_STEPS = 8
"""Below so many steps budgets are whole numbers of ticks."""


def budgets_for(steps: int) -> tuple[float, ...]:
    """Times less compute than a full run of so many steps."""
    if steps >= FEW_STEPS:
        return BUDGETS
    return tuple(steps / ticks for ticks in range(steps - 1, 0, -1))
