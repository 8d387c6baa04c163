"""plan: what a run would compute and hold, before it runs."""

from typing import Any

import click

from diffcache.api import method_named, plan
from diffcache.command.options import Setting, in_batches, with_method, with_setting


@click.command()
@with_method
@with_setting
@in_batches
def command(
    setting: Setting, method: str | None, speedup: float | None, options: tuple[tuple[str, Any], ...]
) -> None:
    """Print what a run would compute and hold, before it runs.

    METHOD is a method's name (easycache, taylorseer, ...), or a folder that `tune` has written. Default: what
    `accelerate(pipe)` uses.
    """
    config = method_named(method, speedup=speedup, **dict(options))
    pipe = setting.source.load()
    (call, *_) = setting.calls(pipe, setting.asked(setting.batch))
    click.echo(plan(pipe, config, **call))
