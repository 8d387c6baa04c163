"""Prints where a denoiser can be cached: `python scripts/inspect_model.py flux` (a testbed, a folder, or a hub id)."""

import argparse
from typing import Any

import torch
from diffusers import DiffusionPipeline
from torch import nn

from diffcache import discover
from diffcache.evals.testbeds import zoo
from diffcache.host.components import denoisers_of


class _Seen(Exception):
    """Ends a pipeline call once the denoiser has been called."""


def first_call(
    pipe: Any, denoiser: nn.Module, call: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a pipeline's first denoiser call."""
    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append((args, kwargs))
        raise _Seen

    handle = denoiser.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        pipe(**call)
    except _Seen:
        return seen[0]
    finally:
        handle.remove()
    raise SystemExit("the pipeline never called this denoiser")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a testbed, a folder, or a hub id")
    parser.add_argument("--prompt", default="a fox in the snow", help="for pipelines other than testbeds")
    args = parser.parse_args()
    if args.model in zoo.NAMES:
        pipe, call = zoo.load(args.model), zoo.sample_call(args.model, 0, 2, 1)
    else:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        pipe = DiffusionPipeline.from_pretrained(args.model).to(device)
        call = {"prompt": args.prompt, "num_inference_steps": 2}
    for name, denoiser in denoisers_of(pipe).items():
        positional, named = first_call(pipe, denoiser, call)
        print(f"{name}: {discover(denoiser, *positional, **named)}\n")


if __name__ == "__main__":
    main()
