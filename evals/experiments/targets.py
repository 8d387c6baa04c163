"""What `speedup=` gives on testbeds, beside as many evenly spread ticks."""

from typing import Any

from diffcache.evals.harness.calls import calls_of_testbed
from diffcache.evals.harness.rendering import render
from diffcache.evals.metrics.fidelity import psnr
from diffcache.evals.testbeds import zoo
from diffcache.profiling.recording.full_runs import FullRuns
from diffcache.recipes.even import EvenConfig
from diffcache.recipes.trajectory import TrajectoryConfig

STEPS = 50
SPEEDUPS = (1.3, 1.5, 2.0, 2.5, 3.0, 4.0)


def measured(testbed: str, samples: int) -> dict[str, Any]:
    """A row for each `speedup=`, beside as many evenly spread ticks with hindsight, extrapolated with order 1 and 2."""
    calls = calls_of_testbed(testbed, "heldout", range(samples), STEPS)
    unseen = FullRuns(zoo.load(testbed), calls)
    rows = []
    for speedup in SPEEDUPS:
        online = render(unseen.pipe, unseen.calls[0], TrajectoryConfig(speedup=speedup))
        ticks = len(online.run_report.computed_ticks)
        methods = {f"order {order}": EvenConfig(speedup=STEPS / ticks, order=order) for order in (1, 2)}
        rows.append(
            {
                "speedup": speedup,
                "ticks": ticks,
                "psnr": round(float(psnr(online.pictures, unseen.pictures).median()), 2),
                "psnr_even": {name: round(unseen.psnr(config), 2) for name, config in methods.items()},
            }
        )
        print(rows[-1], flush=True)
    return {"steps": STEPS, "speedup": rows}
