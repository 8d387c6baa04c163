"""All pages and tables in the documentation that are made of stored results."""

from pathlib import Path

from diffcache.evals.harness.markdown import with_tables
from diffcache.evals.harness.results import result_path
from diffcache.evals.race.result import EXPERIMENT, RaceResult
from diffcache.evals.tables.calibration import calibration_tables
from diffcache.evals.tables.expected_errors import expected_errors_table
from diffcache.evals.tables.first_call import first_call_table
from diffcache.evals.tables.formats import formats_table
from diffcache.evals.tables.gpu import gpu_tables
from diffcache.evals.tables.language import language_tables
from diffcache.evals.tables.losses import losses_table
from diffcache.evals.tables.methods import methods_page
from diffcache.evals.tables.planning_time import planning_time_table
from diffcache.evals.tables.plans import plans_table
from diffcache.evals.tables.prediction_limits import prediction_limits_table
from diffcache.evals.tables.quantization import quantization_table
from diffcache.evals.tables.race import race_tables
from diffcache.evals.tables.race_fid import race_fid_table
from diffcache.evals.tables.regimes import regimes_summary
from diffcache.evals.tables.rows import rows_tables
from diffcache.evals.tables.searched import searched_tables
from diffcache.evals.tables.serving import serving_table
from diffcache.evals.tables.trajectory import (
    learned_weights_table,
    threshold_table,
    trajectory_summary,
    trajectory_table,
    two_denoisers_table,
    unguided_table,
    weak_guidance_table,
)
from diffcache.evals.tables.transfer_steps import transfer_steps_table
from diffcache.evals.tables.video import (
    chimera_table,
    long_video_pairs_table,
    long_video_table,
    next_scale_layers_table,
    next_scale_table,
    rollout_reuse_table,
)
from diffcache.evals.testbeds import splits

PAGES_WITH_TABLES = (
    "README.md", "docs/limits.md", "docs/race.md", "docs/regimes.md", "docs/searched.md", "docs/serving.md",
    "docs/trajectory.md", "docs/measured/trajectory.md",
    "docs/measured/race.md", "docs/measured/calibration.md", "docs/measured/memory.md", "docs/measured/quantization.md",
    "docs/measured/rows.md", "docs/measured/video.md", "docs/measured/language.md", "docs/measured/gpu.md",
    "docs/language.md",
)  # fmt: skip
"""Written by hand, with places for tables."""


def race_results() -> list[RaceResult]:
    """Of all testbeds that were raced, those to judge on first."""
    paths = (result_path(EXPERIMENT, testbed) for testbed in (*splits.JUDGING, *splits.FITTING))
    return [RaceResult.load(path) for path in paths if path.exists()]


def pages(root: Path) -> dict[str, str]:
    """The texts of all pages by path, as the stored results have them.

    Args:
        root: of the checkout, for the pages that are written by hand.
    """
    races = race_results()
    tables = {
        **race_tables(races),
        "race_fid": race_fid_table(),
        "losses": losses_table(races),
        "formats": formats_table(),
        "first_call": first_call_table(),
        "quantization": quantization_table(),
        "serving": serving_table(),
        "trajectory": trajectory_table(),
        "trajectory_summary": trajectory_summary(),
        "transfer_steps": transfer_steps_table(),
        "two_denoisers": two_denoisers_table(),
        "planning_time": planning_time_table(),
        "expected_errors": expected_errors_table(),
        "plans": plans_table(),
        **rows_tables(),
        **language_tables(),
        **gpu_tables(),
        "threshold": threshold_table(),
        "unguided": unguided_table(),
        "weak_guidance": weak_guidance_table(),
        "learned_weights": learned_weights_table(),
        "prediction_limits": prediction_limits_table(),
        "long_video": long_video_table(),
        "long_video_pairs": long_video_pairs_table(),
        "rollout_reuse": rollout_reuse_table(),
        "next_scale": next_scale_table(),
        "next_scale_layers": next_scale_layers_table(),
        "chimera": chimera_table(),
        **calibration_tables(),
        **searched_tables(),
        "regimes_summary": regimes_summary(),
    }
    by_hand = {path: with_tables((root / path).read_text(), tables) for path in PAGES_WITH_TABLES}
    generated = {
        "docs/results.md": methods_page(),
    }
    return {**by_hand, **generated}
