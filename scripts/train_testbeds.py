"""Trains the testbeds in evals/testbeds on procedural data: `python scripts/train_testbeds.py dit --minutes 30`.

The pipelines read their autoencoder from the work folder: `train_testbeds.py vae` leaves the one of dit, flux and sd there,
`emoji_vae` that of testbeds of emoji (sana needs `emoji_dc` too), `fashion_vae` that of fashion. turbo is distilled from the
finished sd3, kontext_turbo from the finished kontext. Emoji and Fashion-MNIST are read from `data` in the
work folder; `evals/training/emoji.py` and `evals/training/fashion_pictures.py` say how they get there.
"""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path
from typing import Any

import torch

from diffcache.evals.harness.command_line import parser
from diffcache.evals.testbeds import splits, zoo
from diffcache.evals.training import accept_judging
from diffcache.evals.training.accept import accept, write_hashes
from diffcache.evals.training.loop import Progress, Training
from diffcache.evals.training.policy import accept_policy

ROOT = Path(__file__).resolve().parents[1]
AUTOENCODERS = ("vae", "wan_vae", "wan_decoder", "emoji_vae", "emoji_dc", "fashion_vae")
CLASSIFIERS = ("classifier", "fashion_classifier")
OTHERS = ("policy", "language", "tally", "causal_wan", "next_scale")
BEFORE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("dit", "flux", "sd"), ("vae",)),
    **dict.fromkeys(("pixart", "sd3", "sdxl", "kontext", "lumina2"), ("emoji_vae",)),
    "sana": ("emoji_vae", "emoji_dc"),
    "turbo": ("emoji_vae", "sd3"),
    "kontext_turbo": ("emoji_vae", "kontext"),
    "wan": ("wan_vae",),
    "fashion": ("fashion_vae",),
}
"""The trainings that must have been run before one's own."""


def arguments() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("name", choices=[*AUTOENCODERS, *zoo.ALL, *CLASSIFIERS, *OTHERS])
    options.add_argument(
        "--minutes", type=float, default=30.0, help="budget in CPU minutes (wall minutes on CUDA)"
    )
    options.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    options.add_argument("--device", default="auto", help="auto (CUDA when there), cpu, cuda, ...")
    options.add_argument(
        "--threads", type=int, default=1, help="CPU threads; the small models gain nothing from more"
    )
    options.add_argument("--seed", type=int, default=0)
    options.add_argument(
        "--work", type=Path, default=ROOT / "outputs" / "testbeds", help="checkpoints and previews"
    )
    options.add_argument("--out", type=Path, default=ROOT / "evals" / "testbeds", help="finished pipelines")
    options.add_argument(
        "--accept-only", action="store_true", help="only measure and describe a trained pipeline"
    )
    return options.parse_args()


def keep_facts(args: argparse.Namespace, progress: Progress) -> None:
    """Writes what a training took beside its checkpoints, for the fact sheet."""
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
    """The facts of a pipeline's training, with those of the trainings before it."""
    names = (*BEFORE.get(name, ()), name)
    parts = [json.loads((work / part / "facts.json").read_text()) for part in names]
    took = [f"{part['iterations']} iterations, {part['seconds']} CPU seconds" for part in parts]
    earlier = "; ".join(f"{part}: {cost}" for part, cost in zip(names[:-1], took, strict=False))
    commands = [command for part in parts for command in part["commands"]]
    return {**parts[-1], "earlier": earlier, "commands": commands}


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    cuda = torch.cuda.is_available()
    device = torch.device(("cuda" if cuda else "cpu") if args.device == "auto" else args.device)
    module = importlib.import_module(f"diffcache.evals.training.{args.name}")
    if not args.accept_only:
        training = Training(
            args.name, args.work, args.out / args.name, args.minutes, device, args.seed, args.resume
        )
        progress = module.train(training)
        keep_facts(args, progress)
        print(f"{args.name}: {progress}")
    if args.name in splits.JUDGING:
        accept_judging.accept(args.name, args.out / args.name, facts_of(args.name, args.work))
    elif args.name in splits.FITTING:
        accept(args.name, args.out / args.name, facts_of(args.name, args.work))
    elif args.name == "policy":
        accept_policy(args.out / args.name, json.loads((args.work / args.name / "facts.json").read_text()))
    else:
        write_hashes(args.out)


if __name__ == "__main__":
    main()
