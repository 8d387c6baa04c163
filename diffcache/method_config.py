"""MethodConfig: a method's options, how they are checked, saved and loaded; and the table of all methods by name."""

import dataclasses
import inspect
import math
import numbers
import pkgutil
import re
from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from typing_extensions import Self

from diffcache.schedulers.artifact import upload
from diffcache.schedulers.config_file import load_config, save_config
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.numbers_given import is_number

NAME = re.compile(r"[a-z0-9]+([-._][a-z0-9]+)*")


@dataclass(frozen=True, kw_only=True)
class MethodConfig(ABC):
    """One method and its options. Immutable; holds no state of any run.

    A method for diffusion derives from `CacheConfig`, one for language models from `LanguageConfig`. Write it as a frozen
    dataclass, give it a `name`, and put `@method` above it: then it attaches, saves and loads by its name.

    Raises:
        ConfigError: an option out of range.
    """

    name: ClassVar[str]

    def __post_init__(self) -> None:
        """Checks the options; subclasses call it first."""
        for option in _never_none(type(self)):
            if getattr(self, option) is None:
                raise ConfigError(
                    f"{self.name}: {option} must be a value, not None: leave it out for its default."
                )

    @classmethod
    def methods(cls) -> dict[str, type[Self]]:
        """All registered methods of this class, by name and in the order of names."""
        return {name: found for name, found in sorted(_methods.items()) if issubclass(found, cls)}

    @classmethod
    def of(cls, **options: Any) -> Self:
        """The method with these options.

        Raises:
            ConfigError: an option that the method does not have, or a value out of range.
        """
        cls._refuse_unknown(options)
        return cls(**options)

    def replace(self, **options: Any) -> Self:
        """A copy with some options changed.

        Raises:
            ConfigError: an option that the method does not have, or a value out of range.
        """
        self._refuse_unknown(options)
        return dataclasses.replace(self, **options)

    def options(self) -> dict[str, Any]:
        """Every option with its value."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def save_pretrained(
        self, folder: str | Path, models: Mapping[str, tuple[str, str]] | None = None
    ) -> Path:
        """Writes `cache_config.json` into a folder, which is made if need be; returns the folder.

        Args:
            folder: where.
            models: class and configuration hash of the denoisers that its values were measured on, by name: attaching the
                folder to others is refused. None: it is for any.
        """
        return save_config(self.name, self.options(), Path(folder), models)

    @classmethod
    def from_pretrained(cls, name: str | Path) -> Self:
        """Reads a config from a folder or from the hub: a registered method of this class.

        Raises:
            ConfigError: there is none, its method is not registered or of another class, or an option is unknown or out of
                range.
        """
        saved, options = load_config(name)
        if saved not in _methods:
            raise ConfigError(
                f"{name}: holds the method {saved!r}, which is not registered: import the package that defines it first."
            )
        found = _methods[saved]
        if not issubclass(found, cls):
            raise ConfigError(
                f"{name}: holds the method {saved!r}, which is no {cls.__name__}: read it with "
                f"{found.__name__}.from_pretrained."
            )
        return found.of(**{key: tuple(v) if isinstance(v, list) else v for key, v in options.items()})

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Uploads the config to a hub repository, made if need be; returns its address (options: `private`, `token`)."""
        return upload(self.save_pretrained, repo_id, **options)

    @classmethod
    def _refuse_unknown(cls, options: dict[str, Any]) -> None:
        known = [field.name for field in dataclasses.fields(cls)]
        for option in options:
            if option not in known:
                raise ConfigError(f"{cls.name} has no option {option!r}; its options are {', '.join(known)}.")

    def _check(self, option: str, least: float, *, whole: bool = False) -> None:
        """Refuses a value that is no finite number, or too small. None is an option left open."""
        value = getattr(self, option)
        kind = numbers.Integral if whole else numbers.Real
        is_finite = type(value) is not bool and isinstance(value, kind) and math.isfinite(value)
        if is_finite and not isinstance(value, (int, float)):  # NumPy's
            value = int(value) if whole else float(value)
            object.__setattr__(self, option, value)
        if value is not None and not (is_finite and value >= least):
            number = f"a whole number >= {least}" if whole else f"a number >= {least} and finite"
            raise ConfigError(f"{self.name}: {option} must be {number}, not {value!r}.")

    def _check_window(self, option: str) -> None:
        """Refuses what is no pair of finite numbers that rise."""
        self._check_numbers(option, 2)
        window = getattr(self, option)
        if window is None or window[0] >= window[1]:
            raise ConfigError(
                f"{self.name}: {option} must be a tuple of two numbers that rise, not {window!r}."
            )

    def _check_numbers(self, option: str, count: int | None = None) -> None:
        """Refuses what is no sequence of (so many) finite numbers. None is an option left open."""
        value = getattr(self, option)
        if value is None:
            return
        are_numbers = isinstance(value, (list, tuple)) and all(map(is_number, value))
        if not are_numbers or not value or (count is not None and len(value) != count):
            many = "finite numbers" if count is None else f"{count} finite numbers"
            raise ConfigError(f"{self.name}: {option} must be a tuple of {many}, not {value!r}.")

    def _check_ticks(self, option: str) -> None:
        """Refuses what is no sequence of whole numbers that rise from 0. None is an option left open."""
        value = getattr(self, option)
        if value is None:
            return
        whole = isinstance(value, (list, tuple)) and all(type(tick) is int for tick in value)
        if not whole or [*value[:1]] != [0] or any(a >= b for a, b in pairwise(value)):
            raise ConfigError(
                f"{self.name}: {option} must be a tuple of whole numbers that rise from 0, not {value!r}."
            )

    def _choose(self, option: str, *allowed: object) -> None:
        """Refuses a value that is none of these."""
        value = getattr(self, option)
        if not any(value is one or (isinstance(value, str) and value == one) for one in allowed):
            names = ", ".join(map(str, allowed))
            raise ConfigError(f"{self.name}: {option} must be one of {names}, not {value!r}.")


ConfigT = TypeVar("ConfigT", bound=MethodConfig)

_methods: dict[str, type[MethodConfig]] = {}


def method(cls: type[ConfigT]) -> type[ConfigT]:
    """Registers a method's config class under its `name`: `accelerate(target, name)` and loading find it from then on.

    A class that is defined again (a module reloaded, a notebook's cell run twice) takes the place of the old one.

    Raises:
        ConfigError: no frozen dataclass that derives from MethodConfig, a class that leaves methods abstract, or a name
            that is missing, not in lower case, or taken by another class.
    """
    if not isinstance(cls, type):
        raise ConfigError(f"@method goes above a method's class, not {cls!r}.")
    named = f"{cls.__module__}.{cls.__qualname__}"
    if not issubclass(cls, MethodConfig):
        raise ConfigError(f"{named} must derive from CacheConfig or LanguageConfig to be a method.")
    if "__dataclass_params__" not in vars(
        cls
    ):  # one that derives from MethodConfig cannot be other than frozen
        raise ConfigError(f"{named} must be a frozen dataclass: put @dataclass(frozen=True) below @method.")
    if inspect.isabstract(cls):
        raise ConfigError(f"{named} must define {', '.join(sorted(cls.__abstractmethods__))}.")
    name = getattr(cls, "name", None)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigError(
            f"{named}.name must be lower-case words, such as 'my-method', joined by - . or _: not {name!r}."
        )
    taken = _methods.get(name, cls)
    if (taken.__module__, taken.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ConfigError(
            f"{named}.name {name!r} is taken by {taken.__module__}.{taken.__qualname__}: choose another."
        )
    _methods[name] = cls
    return cls


def register_all_in(package: str, folder: Path) -> None:
    """Imports every module of a package that lies in a folder, so that its methods are registered."""
    for module in pkgutil.iter_modules([str(folder)]):
        import_module(f"{package}.{module.name}")


@cache
def _never_none(cls: type[MethodConfig]) -> tuple[str, ...]:
    """The options of a method whose defaults and types leave out None; none where types are named that exist for a type checker only."""
    try:
        hints = get_type_hints(cls)
    except (NameError, AttributeError, TypeError):
        return ()
    return tuple(
        field.name
        for field in dataclasses.fields(cls)
        if field.init and field.default is not None and not _takes_none(hints[field.name])
    )


def _takes_none(hint: Any) -> bool:
    """Whether None is of a type. In doubt it is."""
    if get_origin(hint) is Literal:
        return None in get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        return any(map(_takes_none, get_args(hint)))
    return hint in (Any, object, None, type(None)) or not isinstance(get_origin(hint) or hint, type)
