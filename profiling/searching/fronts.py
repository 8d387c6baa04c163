"""Pareto fronts that searches found, as schedules and as a picture."""

from dataclasses import replace
from pathlib import Path
from shutil import rmtree

from torch import Tensor

from diffcache.profiling.recording.shares import TooLittle
from diffcache.profiling.searching.space import Space
from diffcache.schedulers.artifact import JSON_NAME
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.schedule import Schedule
from diffcache.schedulers.search.evolution import Evolution, Front


def schedules(front: Front, space: Space) -> list[Schedule]:
    """The tables of a front as schedules, the cheapest last. `measured` has their compute share, and their loss in the search."""
    made = [space.schedule(table, {"method": "evolution"}) for table in front.tables]
    return [
        replace(schedule, measured={**schedule.measured, "loss_calibration": round(float(loss), 4)})
        for schedule, loss in zip(made, front.scores[:, 0], strict=True)
    ]


def best_within(search: Evolution, compute: float, count: int = 1) -> Tensor:
    """The evaluated tables of least loss among those that cost at most a share of the full run's work.

    Args:
        search: that evaluated them.
        compute: the share.
        count: how many tables, at most.

    Returns:
        Bool [<= count, T, S], by rising loss.

    Raises:
        ConfigError: no evaluated table is so cheap.
    """
    fits = (search.scores[:, 1] <= compute + 1e-9).nonzero().flatten()
    if not len(fits):
        least = float(search.scores[:, 1].min())
        raise TooLittle(
            f"compute: the cheapest schedule of the search costs {least:.2f} of the full run.", least
        )
    best = fits[search.scores[fits, 0].argsort(stable=True)[:count]]
    return search.tables[best]


def write_front(search: Evolution, space: Space, folder: Path) -> list[Path]:
    """Saves the schedules of a front in folders under `folder/front`, and draws `folder/front.png`. It replaces an earlier front.

    Returns:
        The schedules' folders, by rising loss.
    """
    rmtree(folder / "front", ignore_errors=True)
    paths = [
        schedule.save_pretrained(folder / "front" / f"{i:02}")
        for i, schedule in enumerate(schedules(search.front, space))
    ]
    draw_front(search, folder / "front.png")
    return paths


def saved_schedules(folder: Path) -> dict[str, Schedule]:
    """The schedules that were saved in folders directly under `folder`, by the names of these folders, in their order.

    Raises:
        ConfigError: there is none.
    """
    files = sorted(folder.glob(f"*/{JSON_NAME}"))
    if not files:
        raise ConfigError(f"{folder}: no search saved a schedule there; give the folder of one.")
    return {path.parent.name: Schedule.from_pretrained(path.parent) for path in files}


def draw_front(search: Evolution, path: Path) -> Path:
    """Draws all evaluated tables and the front: loss over compute share.

    Raises:
        ImportError: matplotlib is not installed: it comes with the extra `evals`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    front = search.front.scores
    axes.scatter(
        search.scores[:, 1].numpy(), search.scores[:, 0].numpy(), s=8, color="#cfe0f3", label="rendered"
    )
    axes.scatter(front[:, 1].numpy(), front[:, 0].numpy(), s=16, color="#1f5fa8", label="front")
    axes.step(front[:, 1].numpy(), front[:, 0].numpy(), where="pre", color="#1f5fa8", linewidth=1)
    axes.set_xlabel("share of the full run's work")
    axes.set_ylabel("loss on the calibration calls")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    return path
