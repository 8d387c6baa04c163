"""What the report of a run of few steps says where no tick was reused."""

FEW_STEPS = 8
"""A run of so many ticks is short: what lies between two computed ticks is long, and reuse is seldom near enough."""


def few_steps_advice(num_ticks: int, branches: int) -> str:
    """What else saves work in a run in which no tick can be reused.

    Args:
        num_ticks: its length.
        branches: the number of its guidance passes.
    """
    sooner = (
        "; speedup= skips some all the same, with a larger error: compare it with fewer steps"
        if num_ticks > 2
        else ""
    )
    guidance = "; fastercache rebuilds the unconditional pass at some ticks" if branches > 1 else ""
    return (
        f"too few steps to skip any ({num_ticks} {'tick' if num_ticks == 1 else 'ticks'}: warm-up, history and tail take them, or the error would be larger than was asked for); "
        f"rows= computes some tokens only where a mask, a reference or an edit says which{guidance}{sooner}; nothing else can be saved"
    )
