"""Methods by name: what may be registered, and what is saved, loaded and refused."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import pytest
import torch
from support.harness import STEPS
from support.toys import ToyDenoiser
from zoo.pipelines import CASES

from diffcache import (
    CacheConfig,
    ConfigError,
    DiffcacheError,
    EasyCacheConfig,
    LanguageConfig,
    MethodConfig,
    UniformConfig,
    accelerate,
    method,
    methods,
    report,
)
from diffcache import method_config as table
from diffcache.recipes.even import EvenConfig
from diffcache.recipes.trajectory import TrajectoryConfig

SOMEBODY_ELSE = '''
from dataclasses import dataclass
from typing import ClassVar

from diffcache import CacheConfig, method
from diffcache.schedulers.interval import Interval


@method
@dataclass(frozen=True, kw_only=True)
class EveryThirdConfig(CacheConfig):
    """Where: the whole denoiser. When: every third tick, or so. How: hold."""

    name: ClassVar[str] = "every-third"

    distance: int = 3
    ticks: tuple[int, ...] = ()

    def scheduler(self, run):
        return Interval(self.distance)

    def warmup(self, run):
        return 1
'''


@pytest.fixture(autouse=True)
def own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(table, "_methods", dict(table._methods))


@pytest.fixture
def somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A method in a package of somebody else's, imported."""
    (tmp_path / "somebody_else.py").write_text(SOMEBODY_ELSE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("somebody_else")
    del sys.modules["somebody_else"]


def test_somebody_elses_method_attaches_by_name_and_is_saved_and_loaded(
    somebody_else: Any, tmp_path: Path
) -> None:
    assert methods()["every-third"] is somebody_else.EveryThirdConfig
    pipe = accelerate(CASES["WanPipeline"].build(), "every-third", distance=4)
    CASES["WanPipeline"].render(pipe, 0, STEPS)
    assert report(pipe).method == "every-third"
    assert report(pipe).computed_ticks == [0, 4, 5]
    config = somebody_else.EveryThirdConfig(distance=5, ticks=(1, 2))
    folder = config.save_pretrained(tmp_path / "saved")
    for cls in (MethodConfig, CacheConfig, somebody_else.EveryThirdConfig):
        assert cls.from_pretrained(folder) == config


def test_a_saved_method_asks_for_the_package_that_defines_it(somebody_else: Any, tmp_path: Path) -> None:
    folder = somebody_else.EveryThirdConfig().save_pretrained(tmp_path / "saved")
    code = f"""
from diffcache import CacheConfig, ConfigError
try:
    CacheConfig.from_pretrained({str(folder)!r})
except ConfigError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "'every-third', which is not registered: import the package that defines it first." in said


@pytest.mark.parametrize(
    "public",
    [
        "methods",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("CacheConfig", "MethodConfig", "LanguageConfig")
        ),
    ],
)
def test_all_methods_of_the_package_are_registered_by_importing(public: str) -> None:
    code = (
        f"from diffcache import {public}; from diffcache.method_config import MethodConfig; "
        "print(*MethodConfig.methods())"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    built_in = {name for name, cls in methods().items() if cls.__module__.startswith("diffcache.")}
    assert set(found.stdout.split()) == built_in
    assert {"trajectory", "easycache", "dkv-decode", "none"} < built_in


def test_methods_are_listed_by_kind() -> None:
    assert "uniform" in CacheConfig.methods()
    assert "uniform" not in LanguageConfig.methods()
    assert {**CacheConfig.methods(), **LanguageConfig.methods()} == methods()


def make(name: Any = "mine", base: type = UniformConfig) -> type:
    """A class that could be a method."""
    return dataclass(frozen=True)(type("MineConfig", (base,), {"name": name, "__module__": "mine"}))


@pytest.mark.parametrize("name", ["", "Mine", "my method", "-mine", "my/method", None, 3])
def test_a_name_is_lower_case(name: Any) -> None:
    with pytest.raises(ConfigError, match="must be lower-case words"):
        method(make(name))
    assert name not in methods()


def test_a_name_that_is_taken_is_refused_and_a_class_may_be_defined_again() -> None:
    with pytest.raises(
        ConfigError, match=r"'uniform' is taken by diffcache\.recipes\.uniform\.UniformConfig"
    ):
        method(make("uniform"))
    assert methods()["uniform"] is UniformConfig
    first, again = make(), make()
    for cls in (first, again):
        assert method(cls) is cls
        assert methods()["mine"] is cls


def test_what_is_no_config_class_is_refused() -> None:
    class UndecoratedConfig(UniformConfig):
        name: ClassVar[str] = "undecorated"

    class Thawed:
        pass

    with pytest.raises(ConfigError, match="must be a frozen dataclass"):
        method(UndecoratedConfig)
    with pytest.raises(ConfigError, match="must derive from CacheConfig or LanguageConfig"):
        method(make(base=Thawed))
    with pytest.raises(ConfigError, match="must define scheduler, warmup"):
        method(make(base=CacheConfig))


@pytest.mark.parametrize("cls", methods().values(), ids=methods())
def test_an_unknown_option_is_refused_in_a_sentence_that_names_the_options(cls: type[MethodConfig]) -> None:
    known = ", ".join(cls().options())
    for refused in (lambda: cls.of(colour=1), lambda: cls().replace(colour=1)):
        with pytest.raises(ConfigError) as error:
            refused()
        assert str(error.value) == f"{cls.name} has no option 'colour'; its options are {known}."


def numeric_options(cls: type[MethodConfig]) -> list[str]:
    kinds = {"int", "float", "int | None", "float | None"}
    return [
        field.name
        for field in dataclasses.fields(cls)
        if getattr(field.type, "__name__", str(field.type)) in kinds
    ]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("cls", methods().values(), ids=methods())
def test_a_number_that_is_not_finite_is_refused(cls: type[MethodConfig], value: float) -> None:
    assert numeric_options(cls)
    for option in numeric_options(cls):
        with pytest.raises(ConfigError) as error:
            cls.of(**{option: value})
        assert str(error.value).startswith(f"{cls.name}: {option} must be ")
        assert str(error.value).endswith(f", not {value!r}.")


@pytest.mark.parametrize("cls", methods().values(), ids=methods())
def test_a_config_is_saved_and_read_by_its_own_kind(cls: type[MethodConfig], tmp_path: Path) -> None:
    kind, other = (
        (CacheConfig, LanguageConfig) if issubclass(cls, CacheConfig) else (LanguageConfig, CacheConfig)
    )
    config = cls(warmup_steps=7)
    config.save_pretrained(tmp_path)
    for reader in (MethodConfig, kind, cls):
        assert reader.from_pretrained(tmp_path) == config
    with pytest.raises(ConfigError, match=f"is no {other.__name__}: read it with {cls.__name__}"):
        other.from_pretrained(tmp_path)


def test_models_of_a_saved_config_are_checked_when_it_is_attached(tmp_path: Path) -> None:
    path, net = tmp_path / "cache_config.json", ToyDenoiser()
    for models, sentence in (
        ([], "models: must be dict"),
        ({"denoiser": {"class": "ToyDenoiser"}}, "config: missing"),
        (
            {"denoiser": {"class": "Other", "config": "0"}},
            "the config's denoiser is of Other, not ToyDenoiser",
        ),
    ):
        path.write_text(json.dumps({"format": 1, "method": "easycache", "options": {}, "models": models}))
        with pytest.raises(DiffcacheError, match=sentence):
            accelerate(net, tmp_path)


def test_what_was_saved_is_checked_when_it_is_read(tmp_path: Path) -> None:
    EasyCacheConfig().save_pretrained(tmp_path)
    path = tmp_path / "cache_config.json"
    for options, sentence in (
        ({"colour": 1}, "no option 'colour'"),
        ({"threshold": -1}, "threshold must be"),
    ):
        path.write_text(json.dumps({"format": 1, "method": "easycache", "options": options}))
        with pytest.raises(ConfigError, match=sentence):
            CacheConfig.from_pretrained(tmp_path)


def test_a_schedule_is_saved_by_itself(tmp_path: Path) -> None:
    pipe = accelerate(CASES["WanPipeline"].build(), "uniform")
    CASES["WanPipeline"].render(pipe, 0, STEPS)
    from diffcache.recipes.replay import ReplayConfig

    config = ReplayConfig(schedule=report(pipe).to_schedule())
    with pytest.raises(ConfigError, match=r"config\.schedule\.save_pretrained"):
        config.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())
    assert torch.equal(config.schedule.decisions, report(pipe).decisions)


def test_a_new_file_in_a_package_of_methods_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shelf").mkdir()
    (tmp_path / "shelf" / "third.py").write_text(SOMEBODY_ELSE)
    monkeypatch.syspath_prepend(tmp_path)
    table.register_all_in("shelf", tmp_path / "shelf")
    assert methods()["every-third"].__module__ == "shelf.third"


def test_numbers_of_other_libraries_are_taken_as_pythons_own(tmp_path: Path) -> None:
    config = UniformConfig(interval=np.int64(2), warmup_steps=np.int32(1))
    assert (type(config.interval), type(config.warmup_steps)) == (int, int)
    assert type(TrajectoryConfig(speedup=np.float32(2)).speedup) is float
    assert CacheConfig.from_pretrained(config.save_pretrained(tmp_path)) == config
    with pytest.raises(ConfigError, match="a number >= 1 and finite"):
        TrajectoryConfig(speedup=np.float32("nan"))


@dataclass(frozen=True, kw_only=True)
class OddlyTyped(EvenConfig):
    """Somebody else's method: its types are no concern of ours, and its defaults are allowed."""

    name: ClassVar[str] = "oddly-typed"

    table: tuple[int, ...] = dataclasses.field(init=False)
    anything: object = None
    unset: int = None  # type: ignore[assignment]
    either: Literal["a"] | None = None
    whole: int = 3
    unknown: np.Missing | None = None  # type: ignore[name-defined]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "table", (1, 2))


def test_methods_of_others_may_have_any_types() -> None:
    assert OddlyTyped(speedup=2).table == (1, 2)


@pytest.mark.parametrize(
    ("hint", "takes"),
    [
        (int, False),
        (int | None, True),
        (Literal["a", None], True),  # noqa: PYI061 - somebody may write it so
        (Literal["a"], False),
        (object, True),
        (Any, True),
        (tuple[int, ...], False),
        (Literal["a", None] | int, True),  # noqa: PYI061
        (TypeVar("T"), True),
    ],
)
def test_types_that_take_none(hint: Any, takes: bool) -> None:
    assert table._takes_none(hint) is takes
