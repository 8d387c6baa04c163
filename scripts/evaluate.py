"""Evaluates a pipeline with and without cache on the same prompts and seeds, and writes a report.

    python scripts/evaluate.py --model flux --samples 64                      # a testbed, the default method
    python scripts/evaluate.py --model wan --method easycache --option threshold=0.1
    accelerate launch scripts/evaluate.py --model black-forest-labs/FLUX.1-dev --prompts PartiPrompts.tsv \\
        --samples 1600 --extractor inception --reference coco/val2017 --clip ViT-L-14 --clip-weights openai

An evaluation that was interrupted goes on where it stopped when the same command is given again.
"""

import argparse
import ast
import sys
from pathlib import Path
from typing import Any

import torch

from diffcache.evals.harness.evaluation import Evaluation, evaluate
from diffcache.evals.testbeds import zoo
from diffcache.evals.webpage.page import write_page
from diffcache.schedulers.errors import DiffcacheError


def option(text: str) -> tuple[str, Any]:
    """`name=value` as a pair; a value that is no Python literal is a string."""
    name, _, value = text.partition("=")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def asked() -> tuple[Evaluation, Path]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="flux", help="a testbed, a folder or a hub id")
    parser.add_argument("--method", help="default: what accelerate(pipe) uses")
    parser.add_argument(
        "--option", action="append", default=[], type=option, help="of the method: name=value"
    )
    parser.add_argument("--prompts", type=Path, help=".txt, .csv, .tsv or .json; default: a testbed's own")
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--takes", type=int, default=1, help="samples of each prompt; VBench wants 5")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of sample 0; sample i has seed + i")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--reference", type=Path, help="folder of real pictures; default: the full run's")
    parser.add_argument(
        "--extractor", default="classifier", help="classifier, inception, or its weights' path"
    )
    parser.add_argument("--clip", help="open-clip model, for the CLIP score")
    parser.add_argument("--clip-weights", help="open-clip tag or checkpoint")
    parser.add_argument("--vbench", type=Path, help="the Python of an environment that has VBench")
    parser.add_argument("--dimensions", nargs="+", default=["temporal_flickering"], help="of VBench")
    parser.add_argument("--out", type=Path, default=Path("outputs/evaluation"))
    args = parser.parse_args()
    evaluation = Evaluation(
        model=args.model,
        method=args.method,
        options=dict(args.option),
        prompts=args.prompts,
        samples=args.samples,
        takes=args.takes,
        steps=args.steps,
        seed=args.seed,
        batch_size=args.batch_size,
        reference=args.reference,
        extractor=args.extractor,
        clip=None if args.clip is None else (args.clip, args.clip_weights),
        vbench=None if args.vbench is None else (args.vbench, args.dimensions),
    )
    return evaluation, args.out


def main() -> None:
    try:
        evaluation, folder = asked()
        if evaluation.model in zoo.NAMES:
            torch.set_num_threads(1)  # such small networks are slower with more
        result = evaluate(evaluation, folder)
        if result is not None:
            print(f"figures: {folder / 'evaluation.json'}\nreport: {write_page(result, folder)}")
    except DiffcacheError as error:
        sys.exit(f"evaluate: {error}")


if __name__ == "__main__":
    main()
