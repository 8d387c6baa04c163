"""How redundant the ticks of each testbed are, as figures and a picture.

`python scripts/measure/redundancy.py --testbeds dit flux` writes evals/results/redundancy/<testbed>.json and .png.
"""

from argparse import Namespace
from typing import Any

from diffcache.evals.experiments.redundancy import draw, redundancy
from diffcache.evals.harness.command_line import measure_testbeds, parser_for_testbeds
from diffcache.evals.testbeds import zoo

EXPERIMENT = "redundancy"
STEPS = 50


def measured(testbed: str, args: Namespace) -> dict[str, Any]:
    found = redundancy(zoo.load(testbed), zoo.sample_call(testbed, 0, STEPS, args.samples))
    draw(testbed, found, args.out / EXPERIMENT / f"{testbed}.png")
    print(testbed, found.psnr)
    return {"steps": STEPS, "output_change": found.output_change, "psnr": found.psnr}


if __name__ == "__main__":
    measure_testbeds(parser_for_testbeds(__doc__, samples=4), EXPERIMENT, measured)
