"""What the command lines in scripts/ share: how they read their options, and a measurement of one testbed after another."""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from diffcache.evals.harness.provenance import header
from diffcache.evals.harness.results import RESULTS, result_path, write_result
from diffcache.evals.testbeds import splits, zoo
from diffcache.schedulers.errors import DiffcacheError

MODEL = f"{', '.join(splits.FITTING)}, which have prompts of their own for this; or another testbed, a folder or a hub id, with --prompts"


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser whose help shows a script's docstring as it is written."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def whole(text: str) -> int:
    """An option's value: a whole number, 1 at least."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def run(main: Callable[[], None]) -> None:
    """Runs a script; what a user got wrong is one sentence on stderr, and status 2, as from the command `diffcache`."""
    try:
        main()
    except DiffcacheError as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        raise SystemExit(2) from error


def needs_prompts(model: str, least: int) -> SystemExit:
    """The refusal of a model without prompts of its own that was given fewer than it takes."""
    return SystemExit(
        f"{model} has no prompts of its own for this, as {', '.join(splits.FITTING)} have: --prompts must name a file of at least "
        f"{least} different prompts"
    )


def parser_for_testbeds(
    description: str | None, samples: int | None = 16, names: Sequence[str] = splits.FITTING
) -> argparse.ArgumentParser:
    """A parser with `--testbeds` (among `names`), `--out`, `--device`, and `--samples` if there is a default for them."""
    made = parser(description)
    made.add_argument("--testbeds", nargs="+", default=names, choices=names)
    if samples is not None:
        made.add_argument("--samples", type=int, default=samples, help="measured on each testbed")
    made.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    movable = {*names} <= {*zoo.NAMES}  # the others are not loaded by `zoo.load`
    made.add_argument(
        "--device", default="cpu", choices=None if movable else ["cpu"], help="where the testbeds run"
    )
    return made


def measure_at_steps(
    parser: argparse.ArgumentParser,
    experiment: str,
    steps: Sequence[int],
    rows: Callable[[str, int, argparse.Namespace], Iterable[dict[str, Any]]],
    **about: Any,
) -> None:
    """`measure_testbeds` at several numbers of steps, one after another.

    Args:
        parser: from `parser_for_testbeds`; gets `--steps`.
        experiment: its name.
        steps: the numbers, unless others are asked for.
        rows: from a testbed's name, a number of steps and the parsed options to the rows.
        **about: what each result says beside its rows.
    """
    parser.add_argument("--steps", type=int, nargs="+", default=steps)
    measure_testbeds(
        parser,
        experiment,
        lambda testbed, args: {
            **about,
            "rows": [row for count in args.steps for row in rows(testbed, count, args)],
        },
    )


def measure_testbeds(
    parser: argparse.ArgumentParser,
    experiment: str,
    measured: Callable[[str, argparse.Namespace], dict[str, Any]],
) -> None:
    """The `main` of a script: measures on one thread, and writes `<out>/<experiment>/<testbed>.json` for each testbed.

    Args:
        parser: from `parser_for_testbeds`, perhaps with more options.
        experiment: its name.
        measured: from a testbed's name and the parsed options to the figures.
    """
    args = parser.parse_args()
    torch.set_num_threads(1)  # networks as small as these are slower with more
    zoo.place(args.device)
    for testbed in args.testbeds:
        asked = {"samples": args.samples} if "samples" in args else {}
        figures = {"testbed": testbed, **asked, **measured(testbed, args)}
        write_result(result_path(experiment, testbed, args.out), header(args.device), figures)
