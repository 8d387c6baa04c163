"""Policy x decode rule on the language testbed: exactness and work, or throughput side by side.

`python scripts/measure/language.py accuracy --decoding blocks --rules threshold --json out.json`
`python scripts/measure/language.py speed --batches 1 8 --json out.json`
"""

import argparse
import json
import platform
import shlex
import sys
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import transformers

from diffcache.config import CacheConfig
from diffcache.evals.language import benchmark as language
from diffcache.evals.language import wordchain
from diffcache.evals.language.shapes import SHAPES

TEST_SEED = 1


def accuracy(args: argparse.Namespace) -> None:
    prompts = wordchain.prompts(args.prompts, language.PROMPT_WORDS, TEST_SEED)
    rows = stored_rows(args)
    done = {(row.cache, row.rule) for row in rows}
    with ProcessPoolExecutor(args.workers, get_context("spawn")) as pool:
        for rule in args.rules:
            for name, config in language.contenders(args.decoding).items():
                wanted = not args.only or name in args.only or (name == "plain" and not args.unpaired)
                if wanted and (name, rule) not in done:
                    row = language.accuracy(name, config, prompts, args.batch, args.decoding, rule, pool)
                    rows.append(row)
                    print(language.accuracy_table(rows), flush=True)
                    save(
                        args, {"decoding": args.decoding, "batch": args.batch, "rows": language.as_json(rows)}
                    )


def stored_rows(args: argparse.Namespace) -> list[language.Row]:
    """What an earlier call has measured with this decoding and batch, and left in the file."""
    if args.json is None or not args.json.exists():
        return []
    found = json.loads(args.json.read_text())
    if (found["decoding"], found["batch"]) != (args.decoding, args.batch):
        raise SystemExit(f"{args.json} holds another decoding or batch: choose another file.")
    return [language.Row(**row) for row in found["rows"]]


def speed(args: argparse.Namespace) -> None:
    """Each cache beside the plain model under the same rule, and beside it in blocks under the first of the rules."""
    shape = SHAPES.get(args.model)
    model = language.load().to(args.device) if shape is None else shape.build(args.device)
    asked = {} if shape is None else {"gen_length": shape.gen_length}
    results = {}
    for batch in args.batches:
        if shape is None:
            prompts = wordchain.prompts(batch, language.PROMPT_WORDS, TEST_SEED)
        else:
            prompts = shape.prompts(batch)
        runs = {name: (config, {**asked, **options}) for name, (config, options) in runs_of(args).items()}
        rates = language.throughput(model, prompts.to(args.device), runs, args.repeats)
        results[str(batch)] = {name: round(rate, 2) for name, rate in rates.items()}
        plain_sampler = next(iter(rates.values()))
        print(f"\nbatch {batch}: tokens per second (cache alone, total)")
        for name, rate in rates.items():
            _, decoding, rule = name.rsplit(", ", 2)
            alone, total = rate / rates[f"plain, {decoding}, {rule}"], rate / plain_sampler
            print(f"  {name:55} {rate:9.1f} {alone:7.2f}x {total:7.2f}x")
        clock = "CPU time of one thread" if args.device == "cpu" else "wall time"
        how = {"clock": clock, "model": args.model, "repeats": args.repeats}
        save(args, {**how, "tokens_per_second": results})


def runs_of(args: argparse.Namespace) -> dict[str, tuple[CacheConfig | None, dict[str, Any]]]:
    """Cache and options of `generate` of each run, by name."""
    return {
        f"{name}, {decoding}, {rule}": (config, {**where, **language.RULES[rule]})
        for decoding, where in language.DECODINGS.items()
        for rule in args.rules
        for name, config in language.contenders(decoding).items()
        if name == "plain" or (name in args.only if args.only else not name.startswith("control"))
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["accuracy", "speed"])
    parser.add_argument("--decoding", choices=language.DECODINGS, default="blocks")
    parser.add_argument("--rules", nargs="+", choices=language.RULES, default=["quota", "threshold"])
    parser.add_argument("--only", nargs="+", help="these caches, beside the plain model")
    parser.add_argument("--unpaired", action="store_true", help="without the plain model (accuracy only)")
    parser.add_argument("--prompts", type=int, default=512)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--model",
        choices=["testbed", *SHAPES],
        default="testbed",
        help="the others have random weights: for speed, and with the rule that asks for no confidence, quota",
    )
    parser.add_argument("--device", default="cpu", help="speed only")
    parser.add_argument("--workers", type=int, default=2, help="processes that write (accuracy only)")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    accuracy(args) if args.what == "accuracy" else speed(args)


def save(args: argparse.Namespace, results: dict[str, Any]) -> None:
    """Writes what there is so far."""
    if args.json is None:
        return
    command = " ".join(["python", "scripts/measure/language.py", *map(shlex.quote, sys.argv[1:])])
    earlier = json.loads(args.json.read_text())["commands"] if args.json.exists() else []
    head = {
        "commands": list(dict.fromkeys([*earlier, command])),
        "date": date.today().isoformat(),
        "device": args.device if args.device == "cpu" else torch.cuda.get_device_name(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps({**head, **results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
