"""Prints where a denoiser can be cached: `python scripts/inspect_model.py flux` (a testbed, a folder, or a hub id)."""

from typing import Any

from torch import nn

from diffcache import discover
from diffcache.evals.harness.command_line import MODEL, parser
from diffcache.evals.harness.pipelines import call_for, load_pipeline
from diffcache.evals.testbeds import splits, zoo
from diffcache.host.components import denoisers_of


class _Called(Exception):
    """Ends a pipeline call once the denoiser has been called."""


def first_call(
    pipe: Any, denoiser: nn.Module, call: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a pipeline's first denoiser call."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append((args, kwargs))
        raise _Called

    handle = denoiser.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        pipe(**call)
    except _Called:
        return calls[0]
    finally:
        handle.remove()
    raise SystemExit("the pipeline never called this denoiser")


def main() -> None:
    options = parser(__doc__)
    options.add_argument("model", help=MODEL)
    options.add_argument("--prompt", default="a fox in the snow", help="for pipelines other than testbeds")
    args = options.parse_args()
    prompts = zoo.prompts(args.model, 1) if args.model in splits.FITTING else [args.prompt]
    pipe, call = load_pipeline(args.model), call_for(args.model, prompts, [0], 2)
    for name, denoiser in denoisers_of(pipe).items():
        positional, named = first_call(pipe, denoiser, call)
        print(f"{name}: {discover(denoiser, *positional, **named)}\n")


if __name__ == "__main__":
    main()
