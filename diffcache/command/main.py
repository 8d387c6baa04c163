"""The command `diffcache`: one verb for each thing that a user does with a model."""

import errno
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from diffcache.schedulers.errors import DiffcacheError, from_extra

VERBS = {
    "demo": ("diffcache.command.demo", "Show on one pipeline what a cache does and what it costs."),
    "app": ("diffcache.command.app", "Open a page with a prompt, a slider and both pictures in a browser."),
    "inspect": ("diffcache.command.inspect_model", "Print where a model can be cached."),
    "plan": ("diffcache.command.plan", "Print what a run would compute and hold, before it runs."),
    "tune": ("diffcache.command.tune", "Find a schedule for a speed-up or a quality on your own prompts."),
    "evaluate": ("diffcache.command.evaluate", "Measure a method on many prompts, and write a report."),
    "compare": ("diffcache.command.compare", "Compare methods with each other and with fewer steps."),
    "show": ("diffcache.command.show", "Print what a folder holds: a schedule, a method, an evaluation."),
}
"""The verbs by name: the module of each, which is imported when it is used, and the line that the help shows."""

EXTRAS = {"gradio": "app", "torchao": "quant"}
"""By package the extra that has it; all others are in `evals`."""

FULL = (errno.EROFS, errno.ENOSPC, errno.EDQUOT)
"""Errors of a file system that takes no more."""

CHECKS = ("check_inputs", "prepare_latents")
"""Where pipelines refuse arguments: the second counts samples and generators, and takes latents."""

USAGE = 2
"""Exit status after a user's error."""


class Verbs(click.Group):
    """A group whose verbs are imported when they are used, so that the help comes at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command: click.Command = import_module(VERBS[cmd_name][0]).command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except DiffcacheError as error:
            from diffcache.command.wording import in_words_of

            name = ctx.invoked_subcommand or ""
            verb = self.get_command(ctx, name)
            said = str(error) if verb is None else in_words_of(verb, name, str(error))
            raise click.ClickException(said) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, line) for name, (_, line) in VERBS.items()])


def _completion(ctx: click.Context, _: click.Parameter, shell: str | None) -> None:
    """Prints the script that makes a shell complete the command."""
    if shell is None or ctx.resilient_parsing:
        return
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "diffcache", "_DIFFCACHE_COMPLETE").source())
    ctx.exit()


@click.group(cls=Verbs, subcommand_metavar="VERB [OPTIONS]", context_settings={"max_content_width": 110})
@click.version_option(package_name="diffcache")
@click.option(
    "--completion",
    type=click.Choice(["bash", "zsh", "fish"]),
    callback=_completion,
    expose_value=False,
    is_eager=True,
    help='Print the completion script: eval "$(diffcache --completion bash)".',
)
def app() -> None:
    """Feature caching for diffusion models.

    \b
    Begin with
      diffcache inspect --model FOLDER_OR_HUB_ID
      diffcache tune --model FOLDER_OR_HUB_ID --speedup 2 --out my-schedule
    and then, in Python,
      accelerate(pipe, "my-schedule")

    `diffcache VERB --help` explains a verb.
    """


NOISY = ("torchao", "bitsandbytes", "torch.utils._pytree", "diffusers", "transformers")
"""Libraries that log at import what they could not load here, asked for or not."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; what a user got wrong is one sentence on stderr, and status 2."""
    for library in ("DIFFUSERS", "TRANSFORMERS"):
        os.environ.setdefault(f"{library}_VERBOSITY", "error")
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        app.main(arguments, prog_name="diffcache", standalone_mode=False)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.exceptions.NoArgsIsHelpError as asked:
        click.echo(asked.format_message())
        return USAGE
    except click.ClickException as error:
        return _refused(error.format_message())
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("diffcache"):
            raise
        extra = EXTRAS.get(error.name or "", "evals")
        return _refused(f"this needs {error.name}: {from_extra(extra)}.")
    except (KeyboardInterrupt, click.Abort):
        return _refused("interrupted: the same `tune` or `evaluate` goes on where this one stopped.")
    except OSError as error:
        if not isinstance(error, (PermissionError, NotADirectoryError)) and error.errno not in FULL:
            raise
        return _refused(f"{error}: choose another folder.")
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":
            raise
        return _refused(
            "out of memory: try --offload model, --quantize int8, or a smaller --size or --batch."
        )
    except (ValueError, TypeError, AttributeError) as error:
        if not _raised_by_the_pipeline(error):
            raise
        return _refused(f"the pipeline refuses this call: {str(error).splitlines()[0]}")
    return 0


def _refused(sentence: str) -> int:
    click.echo(f"diffcache: {sentence}", err=True)
    return USAGE


def _raised_by_the_pipeline(error: BaseException) -> bool:
    """Whether a pipeline's own check of its arguments raised it. Anything else is a fault, and shows its traceback."""
    trace = error.__traceback__
    names = set()
    while trace is not None:
        names.add(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    return not names.isdisjoint(CHECKS)


def run() -> None:
    """The console entry point."""
    sys.exit(main())


if __name__ == "__main__":
    run()
