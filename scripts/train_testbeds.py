"""Train the testbeds in evals/testbeds from procedural data: `python scripts/train_testbeds.py dit --minutes 30`.

The picture testbeds (dit, flux, sd) read the autoencoder that `train_testbeds.py vae` leaves in the work folder.
"""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path
from typing import Any

import torch

from diffcache.evals.training.accept import accept, write_hashes
from diffcache.evals.training.loop import Progress
from diffcache.evals.training.policy import accept_policy

ROOT = Path(__file__).resolve().parents[1]
PIPELINES = ("dit", "flux", "wan", "sd")
AUTOENCODERS = ("vae", "wan_vae", "wan_decoder")
AUTOENCODER_OF = {"dit": "vae", "flux": "vae", "sd": "vae", "wan": "wan_vae"}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=[*AUTOENCODERS, *PIPELINES, "classifier", "policy", "language"])
    parser.add_argument(
        "--minutes", type=float, default=30.0, help="budget in CPU minutes (wall minutes on CUDA)"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.add_argument("--device", default="auto", help="auto (CUDA when there), cpu, cuda, ...")
    parser.add_argument(
        "--threads", type=int, default=1, help="CPU threads; the small models gain nothing from more"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--work", type=Path, default=ROOT / "outputs" / "testbeds", help="checkpoints and previews"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "evals" / "testbeds", help="finished pipelines")
    parser.add_argument(
        "--accept-only", action="store_true", help="only measure and describe a trained pipeline"
    )
    return parser.parse_args()


def keep_facts(args: argparse.Namespace, progress: Progress) -> None:
    """Write what a training took beside its checkpoints, for the fact sheet."""
    path = args.work / args.name / "facts.json"
    command = f"python scripts/train_testbeds.py {args.name} --minutes {args.minutes:g} --seed {args.seed}"
    resumed = args.resume and path.exists()
    earlier = json.loads(path.read_text())["commands"] if resumed else []
    facts = {
        "iterations": progress.iterations,
        "seconds": round(progress.seconds),
        "seed": args.seed,
        "commands": [*earlier, command + " --resume" * args.resume],
    }
    path.write_text(json.dumps(facts, indent=2) + "\n")


def facts_of(name: str, work: Path) -> dict[str, Any]:
    """The facts of a pipeline, joined to those of its autoencoder."""
    parts = [json.loads((work / part / "facts.json").read_text()) for part in (AUTOENCODER_OF[name], name)]
    coder = parts[0]
    took = f"{coder['iterations']} iterations, {coder['seconds']} CPU seconds"
    return {**parts[1], "vae": took, "commands": coder["commands"] + parts[1]["commands"]}


def main() -> None:
    args = parse()
    torch.set_num_threads(args.threads)
    cuda = torch.cuda.is_available()
    device = torch.device(("cuda" if cuda else "cpu") if args.device == "auto" else args.device)
    module = importlib.import_module(f"diffcache.evals.training.{args.name}")
    folders = [args.work / args.name]
    if args.name not in AUTOENCODERS:
        folders.append(args.out / args.name)
    if not args.accept_only:
        progress = module.train(
            *folders, minutes=args.minutes, device=device, seed=args.seed, resume=args.resume
        )
        keep_facts(args, progress)
        print(f"{args.name}: {progress}")
    if args.name in PIPELINES:
        accept(args.name, args.out / args.name, facts_of(args.name, args.work))
    elif args.name == "policy":
        accept_policy(args.out / args.name, json.loads((args.work / args.name / "facts.json").read_text()))
    else:
        write_hashes(args.out)


if __name__ == "__main__":
    main()
