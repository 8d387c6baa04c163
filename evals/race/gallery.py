"""The picture of the race: what full run, fewer steps, diffcache and the best peer draw at a budget, one sample of each testbed."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from diffcache.evals.harness.unseen import judged_on
from diffcache.evals.race import ours
from diffcache.evals.race.contender import RaceSetup
from diffcache.evals.race.everybody import EVERYBODY
from diffcache.evals.race.result import RaceResult
from diffcache.evals.race.row import Reference
from diffcache.evals.race.standings import PEERS, Standing, best_of, names_of, own, standing
from diffcache.evals.race.track import Track

SAMPLE = 0


class Shown(NamedTuple):
    """A picture [channels, height, width] in 0..1 and what stands under it."""

    title: str
    picture: Tensor


def row_of(result: RaceResult, budget: float) -> list[Shown]:
    """A testbed's pictures: settings that compute no more than the budget allows."""
    track = Track(RaceSetup(result.testbed, result.steps))
    with judged_on(result.testbed):
        full = track.drawn(None, {}, SAMPLE)
        shown = [Shown(f"{result.testbed}: {result.steps} steps", full)]
        for title, one in _compared(result, budget).items():
            contender = next(each for each in EVERYBODY if each.full_name == one.contender)
            picture = track.drawn(contender, one.pair.low.options, SAMPLE)
            (psnr,) = Reference(full[None], None).figures(picture[None])["psnr"]
            shown.append(Shown(f"{title}: {psnr:.0f} dB", picture))
    return shown


def _compared(result: RaceResult, budget: float) -> dict[str, Standing]:
    peer = best_of(result, names_of(result, PEERS), budget)
    found = {
        "fewer steps": standing(result, ours.FEWER, budget),
        "diffcache": standing(result, own(ours.SPEEDUP), budget),
        "" if peer is None else " ".join(reversed(peer.contender.split(": "))): peer,
    }
    return {title: one for title, one in found.items() if one is not None}


def draw_gallery(results: Sequence[RaceResult], budget: float, path: Path) -> Path:
    """Writes the pictures of some testbeds, a row for each."""
    from matplotlib.figure import Figure

    rows = [row_of(result, budget) for result in results]
    columns = max(map(len, rows))
    figure = Figure(figsize=(1.9 * columns, 2.1 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), columns, squeeze=False)
    for line, row in zip(axes, rows, strict=True):
        for place in line:
            place.axis("off")
        for place in line[len(row) :]:
            place.text(0.5, 0.5, "no peer was\nmeasured here", ha="center", va="center", fontsize=9)
        for place, (title, picture) in zip(line, row, strict=False):
            still = picture[len(picture) // 2] if picture.ndim == 4 else picture
            place.imshow(still.movedim(0, -1).numpy(), interpolation="nearest")
            place.set_title(title, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    return path
