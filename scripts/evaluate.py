"""Evaluates a pipeline with and without cache on the same prompts and seeds, and writes a report.

    python scripts/evaluate.py --model flux --samples 64                      # a testbed, the default method
    python scripts/evaluate.py --model wan --method easycache --option threshold=0.1
    accelerate launch scripts/evaluate.py --model black-forest-labs/FLUX.1-dev --prompts PartiPrompts.tsv \\
        --samples 1600 --extractor inception --reference coco/val2017 --clip ViT-L-14 --clip-weights openai

To continue an evaluation that was interrupted, give the same command again.
"""

import ast
import sys
from pathlib import Path
from typing import Any

import torch

from diffcache.evals.evaluation.evaluate import RESULT, Evaluation, evaluate
from diffcache.evals.harness.command_line import MODEL, parser
from diffcache.evals.testbeds import splits
from diffcache.evals.webpage.page import write_page
from diffcache.schedulers.errors import DiffcacheError


def option(text: str) -> tuple[str, Any]:
    """`name=value` as a pair; a value that is no Python literal is a string."""
    name, _, value = text.partition("=")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def arguments() -> tuple[Evaluation, Path]:
    """What to evaluate, and the folder of the samples and the report."""
    options = parser(__doc__)
    options.add_argument("--model", default="flux", help=MODEL)
    options.add_argument("--method", help="default: what accelerate(pipe) uses")
    options.add_argument(
        "--option", action="append", default=[], type=option, help="of the method: name=value"
    )
    options.add_argument("--prompts", type=Path, help=".txt, .csv, .tsv or .json; default: a testbed's own")
    options.add_argument("--samples", type=int, default=64)
    options.add_argument("--samples-per-prompt", type=int, default=1, help="VBench wants 5")
    options.add_argument("--steps", type=int, default=50)
    options.add_argument("--seed", type=int, default=0, help="of sample 0; sample i has seed + i")
    options.add_argument("--batch-size", type=int, default=4)
    options.add_argument("--reference", type=Path, help="folder of real pictures; default: the full run's")
    options.add_argument(
        "--extractor",
        default="classifier",
        help="classifier, fashion_classifier, inception, or the path of Inception's weights",
    )
    options.add_argument("--clip", help="open-clip model, for the CLIP score")
    options.add_argument("--clip-weights", help="open-clip tag or checkpoint")
    options.add_argument("--vbench", type=Path, help="the Python of an environment that has VBench")
    options.add_argument("--dimensions", nargs="+", default=["temporal_flickering"], help="of VBench")
    options.add_argument("--out", type=Path, default=Path("outputs/evaluation"))
    args = vars(options.parse_args())
    folder, clip, weights = args.pop("out"), args.pop("clip"), args.pop("clip_weights")
    vbench, dimensions = args.pop("vbench"), args.pop("dimensions")
    evaluation = Evaluation(
        options=dict(args.pop("option")),
        clip=None if clip is None else (clip, weights),
        vbench=None if vbench is None else (vbench, dimensions),
        **args,
    )
    return evaluation, folder


def main() -> None:
    try:
        evaluation, folder = arguments()
        if evaluation.model in splits.FITTING:
            torch.set_num_threads(1)  # networks as small as these are slower with more
        result = evaluate(evaluation, folder)
        if result is not None:
            print(f"figures: {folder / RESULT}\nreport: {write_page(result, folder)}")
    except DiffcacheError as error:
        sys.exit(f"evaluate: {error}")


if __name__ == "__main__":
    main()
