"""evaluate: a method on many prompts, with every figure that can be measured, and a report as a web page."""

from pathlib import Path
from typing import Any

import click

from diffcache.command.options import EXAMPLES, NewFolder, Setting, in_batches, with_method, with_setting
from diffcache.command.show import evaluated
from diffcache.evals.evaluation.evaluate import Evaluation, evaluate
from diffcache.evals.evaluation.names import RESULT
from diffcache.evals.harness.pipelines import Source
from diffcache.evals.metrics.distribution import FEWEST
from diffcache.evals.metrics.extractors import CLASSIFIER
from diffcache.evals.testbeds import shipped
from diffcache.evals.webpage.page import write_page
from diffcache.schedulers.errors import ConfigError

__all__ = ["command", "evaluate"]


FLICKERING = "temporal_flickering"
"""The one dimension of VBench that needs no weights."""


@click.command()
@with_method
@click.option("--samples", type=click.IntRange(1), default=64, show_default=True)
@click.option("--samples-per-prompt", type=click.IntRange(1), default=1, help="VBench wants 5.")
@click.option(
    "--reference",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of real pictures.",
)
@click.option(
    "--extractor", help="For distances: classifier (testbeds), inception, or the path of Inception's weights."
)
@click.option("--clip", help="open-clip model, for the CLIP score.")
@click.option("--clip-weights", help="open-clip tag or checkpoint.")
@click.option(
    "--vbench", type=click.Path(path_type=Path), help="The Python of an environment that has VBench."
)
@click.option("--dimensions", multiple=True, help=f"Of VBench; may be repeated. Default: {FLICKERING}.")
@click.option(
    "--out",
    type=NewFolder(),
    default=Path("outputs/evaluation"),
    show_default=True,
)
@with_setting
@in_batches
def command(
    setting: Setting,
    method: str | None,
    speedup: float | None,
    options: tuple[tuple[str, Any], ...],
    out: Path,
    clip: str | None,
    clip_weights: str | None,
    vbench: Path | None,
    dimensions: tuple[str, ...],
    extractor: str | None,
    **asked: Any,
) -> None:
    """Measure a method on many prompts, beside the full run, and write a report.

    METHOD is a method's name or a folder that `tune` has written. Default: what `accelerate(pipe)` uses. To go on after an
    interruption, give the same command again. `accelerate launch` shares the samples between GPUs.
    """
    if setting.texts:
        raise ConfigError("evaluate takes many prompts: pass a file as --prompts instead of --prompt.")
    if clip_weights is not None and clip is None:
        raise ConfigError("--clip-weights belongs to --clip, which names the model: pass both.")
    if dimensions and vbench is None:
        raise ConfigError(
            "--dimensions are VBench's: pass --vbench, the Python of an environment that has it."
        )
    source = setting.source
    method_options = {**dict(options), **({} if speedup is None else {"speedup": speedup})}
    evaluation = Evaluation(
        model=source.model,
        method=method,
        options=method_options,
        prompts=setting.prompts or (None if source.is_testbed else EXAMPLES),
        steps=source.steps,
        seed=setting.seed,
        batch_size=setting.batch,
        extractor=extractor or (CLASSIFIER if _is_of_shapes(source) and asked["samples"] >= FEWEST else None),
        clip=None if clip is None else (clip, clip_weights),
        vbench=None if vbench is None else (vbench, list(dimensions or [FLICKERING])),
        source=source,
        **asked,
    )
    result = evaluate(evaluation, out)
    if result is not None:
        click.echo(f"{evaluated(out)}\nfigures: {out / RESULT}\nreport: {write_page(result, out)}")


def _is_of_shapes(source: Source) -> bool:
    """Whether the testbeds' classifier knows what is drawn; its weights come with the repository, as those testbeds do."""
    return source.is_testbed and source.model != shipped.NAME
