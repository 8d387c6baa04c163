"""Which better solver is cached in the race."""

import pytest

from diffcache.evals.race.solvers import multistep, solvers
from diffcache.evals.testbeds import zoo


@pytest.mark.parametrize(
    ("testbed", "solver"), [("flux", "UniPC"), ("sdxl", "DPM++ 2M Karras"), ("wan", "own"), ("pixart", "own")]
)
def test_a_better_solver_is_cached_where_the_own_one_is_of_first_order(testbed: str, solver: str) -> None:
    pipe = zoo.load(testbed)
    assert multistep(pipe) == solver
    assert solver in solvers(pipe)
