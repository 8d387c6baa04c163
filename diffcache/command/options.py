"""The options that all verbs share: which pipeline, how it is loaded, how it is called, with which prompts."""

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import click

from diffcache.evals.harness.pipelines import DTYPES, OFFLOADS, Source
from diffcache.evals.harness.prompts import read_prompts
from diffcache.evals.testbeds import shipped, zoo
from diffcache.profiling.recording.calling import Call

EXAMPLES = Path(__file__).with_name("prompts.txt")
"""Prompts for those who give none."""

SEED = 1000
"""Of the first sample. Testbeds are calibrated with the same seeds."""

SEEDS = (-(2**63), 2**63 - 1)
"""From the least to the greatest; PyTorch takes greater ones, which those of further samples may be."""

F = TypeVar("F", bound=Callable[..., Any])


class Size(click.ParamType["tuple[int, int]"]):
    """`1024x768` (width x height), or one number for a square."""

    name = "size"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, int]:
        parts = str(value).lower().split("x")
        if len(parts) > 2 or not all(part.isdecimal() and int(part) for part in parts):
            self.fail(f"{value!r} is no size: give 1024x768 (width x height), or 512.", param, ctx)
        return int(parts[0]), int(parts[-1])


class Assignment(click.ParamType["tuple[str, Any]"]):
    """`name=value`; a value is a Python literal, or one in lower case (true, false, none), or else a text."""

    name = "k=v"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, Any]:
        name, sign, text = str(value).partition("=")
        if not sign or not name.isidentifier():
            self.fail(f"{value!r} is no assignment: give name=value.", param, ctx)
        try:
            return name, ast.literal_eval(text.capitalize() if text in ("true", "false", "none") else text)
        except (ValueError, SyntaxError):
            return name, text


class NewFolder(click.Path):
    """A folder to write to, which is made if need be."""

    def __init__(self) -> None:
        super().__init__(file_okay=False, path_type=Path)

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if value == "":
            self.fail("an empty name is no folder: give its path, or . for this one.", param, ctx)
        return super().convert(value, param, ctx)


class Percent(click.ParamType["float"]):
    """`90%` or `0.9`."""

    name = "share"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        text = str(value)
        try:
            return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            self.fail(f"{value!r} is no share: give 90% or 0.9.", param, ctx)


@dataclass(frozen=True)
class Setting:
    """What the shared options say.

    Attributes:
        source: the pipeline.
        batch: samples in a call.
        prompts: file of prompts; None: the testbed's own, or the examples.
        texts: prompts that were given themselves.
        seed: of the first sample.
    """

    source: Source
    batch: int = 1
    prompts: Path | None = None
    texts: tuple[str, ...] = ()
    seed: int = SEED

    def asked(self, count: int | None = None, split: Any = "calibration") -> list[Any]:
        """The prompts: so many, from the first again after the last; None: all that there are.

        Args:
            count: how many.
            split: of a testbed's own prompts.
        """
        if self.prompts is not None:
            known: Sequence[Any] = read_prompts(self.prompts)
        elif self.texts:
            known = self.texts
        elif self.source.is_testbed:
            known = zoo.prompts(self.source.model, count or 24, split)
        else:
            known = read_prompts(EXAMPLES)
        return [known[i % len(known)] for i in range(len(known) if count is None else count)]

    def calls(self, pipe: Any, prompts: Sequence[Any], seed: int | None = None) -> list[Call]:
        """A call for each `batch` prompts, each sample from its own seed."""
        first = self.seed if seed is None else seed
        return [
            self.source.call_for(
                pipe, prompts[i : i + self.batch], range(first + i, first + min(i + self.batch, len(prompts)))
            )
            for i in range(0, len(prompts), self.batch)
        ]


def _seed(_: click.Context, __: click.Parameter, value: int) -> int:
    if not SEEDS[0] <= value <= SEEDS[1]:
        raise click.BadParameter(f"{value} is no seed: give one of 64 bits.")
    return value


def _finite(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    if value is not None and not isfinite(value):
        raise click.BadParameter(f"{value} is not finite.")
    return value


OPTIONS = (
    click.option("--model", default=shipped.NAME, show_default=True, help="A folder, a hub id, the small model of the package, or a testbed of the repository."),
    click.option("--dtype", type=click.Choice(["auto", *DTYPES]), default="auto", help="Of the weights. auto: bfloat16 on a GPU, else float32."),
    click.option("--size", type=Size(), help="Pixels: 1024x768 (width x height), or 512. Default: the pipeline's own."),
    click.option("--frames", type=click.IntRange(1), help="Of a video."),
    click.option("--steps", type=click.IntRange(1), help="Default: the pipeline's own."),
    click.option("--guidance", type=float, callback=_finite, help="guidance_scale. Default: the pipeline's own."),
    click.option("--offload", type=click.Choice(OFFLOADS), default="none", help="Where weights wait while they are not used."),
    click.option("--quantize", metavar="FORMAT", help="Weights in fewer bits: int8, float8, int4, nvfp4, mxfp8, ..."),
    click.option("--call", "call", type=Assignment(), multiple=True, help="Another argument of every call; may be repeated."),
    click.option("--prompts", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A file: .txt with one in a line, .csv, .tsv, .json."),
    click.option("--prompt", "texts", multiple=True, help="A prompt; may be repeated."),
    click.option("--seed", type=int, callback=_seed, default=SEED, show_default=True, help="Of the first sample."),
)  # fmt: skip


def with_setting(verb: F) -> F:
    """Gives a verb the shared options, as its first argument `setting`."""

    @wraps(verb)
    def called(**options: Any) -> Any:
        own = ("batch", "prompts", "texts", "seed")
        kept = {name: options.pop(name) for name in own if name in options}
        source = Source(
            **{
                name: options.pop(name)
                for name in ("model", "dtype", "size", "frames", "steps", "guidance", "offload", "quantize")
            },
            call=dict(options.pop("call")),
        )
        return verb(Setting(source, **kept), **options)

    for option in reversed(OPTIONS):
        called = option(called)
    return called  # type: ignore[return-value]


in_batches = click.option(
    "--batch", type=click.IntRange(1), default=1, show_default=True, help="Samples in a call."
)
"""Gives a verb that has a setting the number of samples in a call. `demo` draws all samples in one call; `app` and `inspect` draw one."""

METHOD = (
    click.option("--speedup", type=float, help="At least this much less compute, by the default method."),
    click.option(
        "--option", "options", type=Assignment(), multiple=True, help="Of the method; may be repeated."
    ),
)
"""How a method's options are given."""


def with_method(verb: F) -> F:
    """Gives a verb the argument METHOD and its options: `method`, `speedup` and `options`."""
    for option in reversed(METHOD):
        verb = option(verb)
    return click.argument("method", required=False)(verb)
