"""Policy x decode rule on the language testbed: exactness and work, or throughput side by side.

`python scripts/eval_language.py accuracy --decoding blocks --rules threshold --json out.json`
`python scripts/eval_language.py speed --batches 1 8 --json out.json`
"""

import argparse
import json
import platform
import sys
from datetime import date
from pathlib import Path
from typing import Any

import torch
import transformers
from tqdm import tqdm

from diffcache.config import CacheConfig
from diffcache.evals import language, wordchain

TEST_SEED = 1


def accuracy(args: argparse.Namespace) -> dict[str, Any]:
    model = language.load().to(args.device)
    prompts = wordchain.prompts(args.prompts, language.PROMPT_WORDS, TEST_SEED).to(args.device)
    rows = []
    for rule in args.rules:
        options = {**language.DECODINGS[args.decoding], **language.RULES[rule]}
        comparison = language.Accuracy(model, prompts, args.batch, rule, **options)
        for name, config in tqdm(language.contenders(args.decoding).items(), desc=rule):
            if name == "plain" or not args.only or name in args.only:
                rows.append(comparison.row(name, config))
                tqdm.write(language.accuracy_table(rows[-1:]).splitlines()[-1])
    print(language.accuracy_table(rows))
    return {
        "decoding": args.decoding,
        "prompts": args.prompts,
        "batch": args.batch,
        "rows": language.as_json(rows),
    }


def speed(args: argparse.Namespace) -> dict[str, Any]:
    """Each cache beside the plain model under the same rule, and the fastest rules beside the plain sampler."""
    model = (wide_model() if args.wide else language.load()).to(args.device)
    results = {}
    for batch in args.batches:
        prompts = wordchain.prompts(batch, language.PROMPT_WORDS, TEST_SEED).to(args.device)
        runs: dict[str, tuple[CacheConfig | None, dict[str, Any]]] = {}
        for decoding, where in language.DECODINGS.items():
            for rule in args.rules:
                for name, config in language.contenders(decoding).items():
                    if not name.startswith("control") and (
                        name == "plain" or not args.only or name in args.only
                    ):
                        runs[f"{name}, {decoding}, {rule}"] = (config, {**where, **language.RULES[rule]})
        rates = language.throughput(model, prompts, runs, args.repeats)
        results[str(batch)] = {name: round(rate, 2) for name, rate in rates.items()}
        print(f"\nbatch {batch}: tokens per second (cache alone, total)")
        for name, rate in rates.items():
            _, decoding, rule = name.rsplit(", ", 2)
            alone, total = rate / rates[f"plain, {decoding}, {rule}"], rate / rates["plain, blocks, quota"]
            print(f"  {name:55} {rate:9.1f} {alone:7.2f}x {total:7.2f}x")
    return {"wide": args.wide, "repeats": args.repeats, "tokens_per_second": results}


def wide_model() -> Any:
    """The testbed's shape, eight times as wide and twice as deep, with random weights: for speed alone."""
    torch.manual_seed(0)
    config = language.load().config
    config.update({"hidden_size": 768, "intermediate_size": 2048, "head_dim": 128, "num_hidden_layers": 8})
    return transformers.LlamaForCausalLM(config).eval()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["accuracy", "speed"])
    parser.add_argument("--decoding", choices=language.DECODINGS, default="blocks")
    parser.add_argument("--rules", nargs="+", choices=language.RULES, default=["quota", "threshold"])
    parser.add_argument("--only", nargs="+", help="these caches, beside the plain model")
    parser.add_argument("--prompts", type=int, default=512)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--wide", action="store_true", help="a wider model with random weights (speed only)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    results = accuracy(args) if args.what == "accuracy" else speed(args)
    if args.json:
        head = {
            "command": " ".join(["python", "scripts/eval_language.py", *sys.argv[1:]]),
            "date": date.today().isoformat(),
            "device": args.device,
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
