"""tune: finds a schedule for a speed-up or a quality on the user's prompts."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from torch import Tensor

from diffcache.command.options import NewFolder, Percent, Setting, in_batches, with_setting
from diffcache.command.show import show
from diffcache.evals.errors import EvaluationError
from diffcache.profiling.recording.full_runs import Measure
from diffcache.profiling.recording.pictures import psnr
from diffcache.profiling.recording.processes import is_first, own_device
from diffcache.profiling.tuning.engines import ENGINES
from diffcache.profiling.tuning.tune import tune

CLIP = ("ViT-B-32", "openai")
"""Model and weights of the objective "clip", where nothing else is asked for."""

__all__ = ["command", "objective_named", "tune"]


def objective_named(name: str, clip: tuple[str, str | None] = CLIP) -> Measure:
    """How near pictures are to the full runs': "psnr", "ssim", "lpips" (minus the distance), "clip", or "module:function".

    Args:
        name: of the objective.
        clip: open-clip model and weights. The objective is 100 times the cosine of the features of both pictures.

    Raises:
        EvaluationError: there is no such function, or weights are not here.
    """
    if name == "psnr":
        return psnr
    if name == "clip":
        from diffcache.evals.metrics.clip_score import ClipScore

        return ClipScore(*clip).similarity
    if name in ("ssim", "lpips"):
        from diffcache.evals.metrics import fidelity

        if name == "lpips" and not (weights := fidelity.lpips_weights()).exists():
            raise EvaluationError(
                f"--objective lpips: there are no weights of AlexNet at {weights}: put torchvision's there, or choose ssim."
            )
        return fidelity.ssim if name == "ssim" else _minus_lpips(fidelity.lpips)
    module, colon, function = name.partition(":")
    try:
        if not colon:
            raise AttributeError(name)
        found: Measure = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise EvaluationError(
            f"--objective {name}: choose psnr, ssim, lpips, clip, or a function as module:function that takes (pictures, full)."
        ) from error
    return found


def _minus_lpips(lpips: Callable[[Tensor, Tensor], Tensor | None]) -> Measure:
    from torch import stack

    def minus_lpips(pictures: Tensor, full: Tensor) -> Tensor:
        distances = [lpips(one[None], other[None]) for one, other in zip(pictures, full, strict=True)]
        if any(distance is None for distance in distances):
            raise EvaluationError("lpips needs pictures of 64 pixels at least: choose ssim.")
        return -stack([distance for distance in distances if distance is not None])

    return minus_lpips


@click.command()
@click.option("--speedup", type=float, help="At least this much less compute: 2 computes half.")
@click.option("--quality", type=float, help="What the objective must be on most pictures: 35 (dB of PSNR).")
@click.option("--front", is_flag=True, help="One schedule for each of five shares of the compute.")
@click.option(
    "--at-least", type=Percent(), help="Share of the pictures that must keep --quality. Default: 90%."
)
@click.option("--minutes", type=float, help="Time for the search; some renders to verify it come on top.")
@click.option(
    "--objective",
    default="psnr",
    show_default=True,
    help="psnr, ssim, lpips (negative), clip (both pictures' features), or module:function.",
)
@click.option("--clip", default=CLIP[0], show_default=True, help="open-clip model, for the objective clip.")
@click.option("--clip-weights", default=CLIP[1], show_default=True, help="open-clip tag or checkpoint.")
@click.option("--engine", type=click.Choice(list(ENGINES)), default="trajectory", show_default=True)
@click.option("--sites", help="What is cached: model, block, sub-layer. Default: what suits the engine.")
@click.option(
    "--samples", type=click.IntRange(3), help="Prompts to use. Default: all of the file; of the examples 24."
)
@click.option("--out", type=NewFolder(), required=True, help="Folder of the result.")
@with_setting
@in_batches
def command(
    setting: Setting,
    samples: int | None,
    out: Path,
    objective: str,
    clip: str,
    clip_weights: str,
    **asked: Any,
) -> None:
    """Find a schedule on your own prompts, and load it with `accelerate(pipe, OUT)`.

    A third of the prompts at most is measured, on half of the others the best of some candidates is chosen, and on the
    rest it is verified once. To promise something of 90% of all pictures takes 29 prompts to verify on, so give about 70.

    What is rendered is kept in OUT. To go on after an interruption, give the same command again. Ctrl-C ends the search
    with the best so far. `accelerate launch $(which diffcache) tune ...` shares the renders between GPUs.
    """
    measure = objective_named(objective, (clip, clip_weights))
    given = setting.prompts is not None or setting.texts
    prompts = setting.asked(samples if samples or given else 24)
    pipe = setting.source.load(own_device())
    calls = setting.calls(pipe, prompts)
    tune(pipe, calls, objective=measure, folder=out, seed=setting.seed, verbose=True, **asked)
    if is_first():
        click.echo(f"\n{show(out)}\n\nuse it: accelerate(pipe, {str(out)!r})")
