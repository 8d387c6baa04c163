"""What Python's refusals say, in the words of a verb: `speedup=` is `--speedup` there."""

import dataclasses
import re
from collections.abc import Collection

import click

from diffcache.config import CacheConfig
from diffcache.recipes.replay import ReplayConfig

CODE = r"\w[\w.]*\([^()]*\)"
"""A call in Python, which stays as it is."""

ARGUMENT = r"(?<![\w.-])([a-z_]+)=(True\b)?(?=([^\s,;:.)])?)"
"""An argument by its name, whether True follows, and whether any other value does."""

ELSEWHERE = {"folder": "out", "num_inference_steps": "steps"}
"""Arguments that have another name in the command."""


def in_words_of(verb: click.Command, name: str, sentence: str) -> str:
    """A sentence with a verb's options in place of Python's arguments; what it has no option for stays as it is.

    Args:
        verb: the command.
        name: that it is called by.
        sentence: of a refusal.
    """
    of_verb = {str(param.name): param for param in verb.params if isinstance(param, click.Option)}
    of_methods = _options_of_methods() if "options" in of_verb else ()

    def said(found: re.Match[str]) -> str:
        argument, is_true, value = found[1], found[2], found[3]
        if argument is None:  # a call
            return name if found[0] == f"{name}()" else found[0]
        option = of_verb.get(ELSEWHERE.get(argument, argument))
        if option is not None:
            follows = "" if option.is_flag or not (is_true or value) else f" {is_true or ''}"
            return f"{option.opts[0]}{follows}"
        return f"--option {found[0]}" if argument in of_methods else found[0]

    return re.sub(f"{CODE}|{ARGUMENT}", said, sentence)


def _options_of_methods() -> Collection[str]:
    kinds: list[type[CacheConfig]] = [*CacheConfig.methods().values(), ReplayConfig]
    return {field.name for kind in kinds for field in dataclasses.fields(kind)}
