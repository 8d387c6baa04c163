"""inspect: where the denoisers of a pipeline can be cut, learnt from one call."""

from typing import Any

import click
from torch import nn

from diffcache.command.options import Setting, with_setting
from diffcache.discovery.discover import discover
from diffcache.discovery.sites import SiteTable
from diffcache.host.components import check_call, denoisers_of
from diffcache.schedulers.errors import TargetError


def inspect(pipe: Any, **call: Any) -> dict[str, SiteTable]:
    """The sites of each denoiser of a pipeline, by its name. It is called until each denoiser has been called once.

    Args:
        pipe: a pipeline.
        **call: arguments of a call.

    Raises:
        TargetError: there is no pipeline, no denoiser, or the call did not reach one.
        ConfigError: the pipeline does not take one of the arguments.
    """
    check_call(pipe, call)
    return {name: _sites(pipe, denoiser, call) for name, denoiser in denoisers_of(pipe).items()}


class _Called(Exception):
    """Ends a pipeline call once the denoiser has been called."""


def _sites(pipe: Any, denoiser: nn.Module, call: dict[str, Any]) -> SiteTable:
    given: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given.append((args, kwargs))
        raise _Called

    handle = denoiser.register_forward_pre_hook(note, with_kwargs=True)
    try:
        pipe(**call)
    except _Called:
        pass
    finally:
        handle.remove()
    if not given:
        raise TargetError(f"the call never reached this {type(denoiser).__name__}: give it more steps.")
    args, kwargs = given[0]
    return discover(denoiser, *args, **kwargs)


@click.command()
@with_setting
def command(setting: Setting) -> None:
    """Print where a model can be cached: blocks, sub-layers, depths of a UNet; and why other places cannot."""
    pipe = setting.source.load()
    (call, *_) = setting.calls(pipe, setting.asked(1))
    for name, sites in inspect(pipe, **call).items():
        click.echo(f"{name}: {sites}\n")
