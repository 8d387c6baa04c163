"""Registers every method of this package, and says which is the default. A new method needs its own file only."""

from pathlib import Path

from diffcache.language.recipes.base import LanguageConfig
from diffcache.language.recipes.dkv import DKVDecodeConfig
from diffcache.method_config import register_all_in

register_all_in(__package__, Path(__file__).parent)

LANGUAGE_DEFAULT: LanguageConfig = DKVDecodeConfig(interval=None, ahead=False, around=None)
"""What `accelerate(model)` uses for a language model. The staleness curve says how often it refreshes: docs/language.md."""
