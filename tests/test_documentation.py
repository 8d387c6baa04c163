"""The documentation: its code runs, its commands exist, its troubleshooting is complete, and the site is built strictly."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

import pytest
import torch
from diffusers import DiffusionPipeline, FlowMatchEulerDiscreteScheduler, FluxPipeline
from support.refiner import raw_latents, tiny_refiner
from torch import Tensor, nn
from zoo.pipelines import CASES

import diffcache.engine
import diffcache.reports
from diffcache import method_config, report
from diffcache.command.main import VERBS, app
from diffcache.evals.language import benchmark as wordchain
from diffcache.evals.testbeds import causal, zoo
from diffcache.evals.testbeds.next_scale_model import NextScale
from diffcache.rollouts.pipeline import CausalWanPipeline
from diffcache.schedulers import guards

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(path for path in (ROOT / "docs").rglob("*.md"))
TOLD = (ROOT / "docs" / "troubleshooting.md").read_text()

Names = dict[str, Any]
SMALLER = {
    "1024": "32",
    "num_inference_steps=28": "num_inference_steps=4",
    "num_inference_steps=50": "num_inference_steps=6",
    "GSAI-ML/LLaDA-8B-Instruct": str(wordchain.FOLDER),
    'device="cuda"': 'device="cpu"',
}
"""What is put into the code so that it runs quickly."""


def blocks(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)


def flux() -> Any:
    """The testbed, in the place of a pipeline from a hub."""
    pipe = zoo.load("flux")
    pipe.default_sample_size = 4
    return pipe


def saved(folder: Path, pipe: Any) -> Any:
    """The pipeline after a run, whose schedule lies in `my-schedule`."""
    diffcache.accelerate(pipe, "even")
    pipe("a fox", num_inference_steps=6, output_type="latent")
    report(pipe).to_schedule().save_pretrained(folder / "my-schedule")
    return pipe


class Net(nn.Module):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return 0.9 * x + t / 1000


def loop(folder: Path) -> Names:
    noise_scheduler = FlowMatchEulerDiscreteScheduler()
    noise_scheduler.set_timesteps(50)
    return {"net": Net().eval(), "noise_scheduler": noise_scheduler, "x": torch.ones(1, 4, 8, 8)}


def choosing(folder: Path) -> Names:
    (yaml,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "choosing.md").read_text(), re.DOTALL)
    (folder / "cache.yaml").write_text(yaml)
    return {"pipe": flux()}


def video(folder: Path) -> Names:
    transformer = causal.load().transformer
    return {
        "transformer": transformer,
        "noise": torch.randn(1, 16, 6, 8, 8),
        "steps": [(torch.tensor([900.0]), -0.5), (torch.tensor([400.0]), -0.5)],
        "prompt": torch.randn(1, 4, transformer.config.text_dim),
        "zero": torch.zeros(1),
    }


def next_scale(folder: Path) -> Names:
    model = NextScale(width=24, heads=3, layers=4).eval().requires_grad_(False)
    return {"model": model, "sample": lambda: model.sample(torch.arange(2), torch.Generator().manual_seed(0))}


def refining(folder: Path) -> Names:
    return {"refiner": tiny_refiner(), "latents": raw_latents(16, 2)}


def tuning(folder: Path) -> Names:
    prompts = zoo.prompts("sd3", 6)
    return {"pipe": zoo.load("sd3"), "prompts": prompts, "my_prompts": prompts}


def language(folder: Path) -> Names:
    prompt = torch.randint(4, 20, (1, 6))
    return {"input_ids": prompt, "attention_mask": torch.ones_like(prompt)}


def controlnet(folder: Path) -> Names:
    return {"pipe": CASES["StableDiffusionControlNetPipeline"].build()}


def after_run(folder: Path) -> Names:
    return {"pipe": saved(folder, flux()), "other_pipe": flux()}


def plain(folder: Path) -> Names:
    return {"pipe": flux(), "mask": torch.ones(16, 16, dtype=torch.bool)}


def several(folder: Path) -> Names:
    return {"other": flux(), "third": flux()}


def nothing(folder: Path) -> Names:
    return {}


RUN: dict[str, list[Callable[[Path], Names] | None]] = {
    "../README.md": [nothing],
    "choosing.md": [choosing, None, controlnet],
    "index.md": [nothing, None],
    "language.md": [language],
    "loop.md": [loop, loop],
    "memory.md": [plain, None],
    "method.md": [plain],
    "quantization.md": [plain, several, after_run],
    "report.md": [after_run],
    "rows.md": [plain],
    "video.md": [video, nothing, refining, next_scale],
}
"""By page and block the names that the code is given; None: those that the block before it has made."""

SLOW_RUN: dict[str, list[Callable[[Path], Names] | None]] = {"trajectory.md": [tuning], "tune.md": [tuning]}
ELSEWHERE = {"serving.md"}
"""Tested by tests/server/test_docs.py."""


def run(page: str, given: list[Callable[[Path], Names] | None], folder: Path) -> None:
    names: Names = {}
    for block, make in zip(blocks(ROOT / "docs" / page), given, strict=True):
        names = names if make is None else {**vars_of_package(), **make(folder)}
        for old, new in SMALLER.items():
            block = block.replace(old, new)
        exec(compile(block, page, "exec"), names)  # noqa: S102


def vars_of_package() -> Names:
    """What the pages take for imported: the public names, and torchao's and Diffusers' configs."""
    from diffusers import TorchAoConfig
    from torchao.quantization import Int8WeightOnlyConfig

    own = {name: getattr(diffcache, name) for name in diffcache.__all__}
    return {
        **own,
        "torch": torch,
        "TorchAoConfig": TorchAoConfig,
        "Int8WeightOnlyConfig": Int8WeightOnlyConfig,
    }


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Pipelines of the pages are stand-ins, and run in an empty folder and on the CPU. Methods that a page defines go with it."""
    monkeypatch.setattr(method_config, "_methods", dict(method_config._methods))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(FluxPipeline, "from_pretrained", lambda *_, **__: flux())
    monkeypatch.setattr(DiffusionPipeline, "to", lambda self, *_, **__: self)
    monkeypatch.setattr(CausalWanPipeline, "from_pretrained", lambda *_, **__: SmallPipeline())


class SmallPipeline:
    """A causal pipeline that makes few small frames, whatever it is asked for."""

    def load_causal_weights(self, path: str) -> None:
        """There are none here."""

    def __call__(self, prompts: dict[int, str], num_frames: int, policy: str) -> Any:
        first, later = sorted(prompts)
        asked = {first: prompts[first], 4: prompts[later]}
        return causal.load()(asked, num_frames=9, policy=policy, **causal.call(steps=2))


def test_every_page_with_code_is_run() -> None:
    with_code = {path.relative_to(ROOT / "docs").as_posix() for path in PAGES if blocks(path)}
    assert with_code | {"../README.md"} == {*RUN, *SLOW_RUN, *ELSEWHERE}


@pytest.mark.usefixtures("no_hub")
@pytest.mark.parametrize("page", RUN)
def test_the_code_of_a_page_runs(page: str, tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    run(page, RUN[page], tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("no_hub")
@pytest.mark.parametrize("page", SLOW_RUN)
def test_the_code_of_a_page_that_tunes_runs(page: str, tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    run(page, SLOW_RUN[page], tmp_path)


def commands() -> list[tuple[str, list[str]]]:
    """The commands that the pages name: where, and as words."""
    found = []
    for path in [*PAGES, ROOT / "README.md"]:
        text = path.read_text().replace("\\\n", " ")
        for line in re.findall(r"^    (?:accelerate launch \S+ )?diffcache (.*)$", text, re.MULTILINE):
            found.append((path.name, line.split("  #")[0].split()))
    return found


def test_commands_in_pages_have_verbs_and_options_that_exist() -> None:
    assert len(commands()) >= 5
    for page, (verb, *words) in commands():
        known = {name for option in app.get_command(None, verb).params for name in option.opts}  # type: ignore[arg-type, union-attr]
        assert {word for word in words if word.startswith("--")} <= known, (page, verb, words)


def test_the_page_of_verbs_has_all_of_them() -> None:
    page = (ROOT / "docs" / "command.md").read_text()
    assert [verb for verb in VERBS if f"| `{verb}` |" not in page] == []


def modules_of(package: ModuleType) -> list[ModuleType]:
    return [
        importlib.import_module(f"{package.__name__}.{found.name}")
        for found in iter_modules(package.__path__)
    ]


REASONS = {
    text
    for module in (guards, *modules_of(diffcache.engine), *modules_of(diffcache.reports))
    for name, text in vars(module).items()
    if name.isupper() and isinstance(text, str) and " " in text
}
"""Why something was computed, and what reports note."""


@pytest.mark.parametrize("reason", sorted(REASONS))
def test_every_reason_in_a_report_is_explained(reason: str) -> None:
    assert any(phrase.removeprefix("no hindsight: ") in reason for phrase in phrases()), (
        f"explain {reason!r} in docs/troubleshooting.md"
    )


def phrases() -> list[str]:
    """What the page quotes, without the dots where a sentence is cut."""
    quoted = [part.strip() for text in re.findall(r"`([^`]+)`", TOLD) for part in text.split("...")]
    return [part for part in quoted if len(part) > 3]


def refusals() -> list[tuple[str, str]]:
    """The sentences with which attaching is refused: file and text, without what is filled in."""
    files = [ROOT / "diffcache" / "api.py"]
    files += [
        path
        for room in ("attach", "host", "recipes", "planning")
        for path in (ROOT / "diffcache" / room).rglob("*.py")
    ]
    found = []
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            call = node.exc if isinstance(node, ast.Raise) else None
            if isinstance(call, ast.Call) and ast.unparse(call.func) in (
                "ConfigError",
                "TargetError",
                "ScheduleError",
            ):
                parts = [
                    part.value
                    for part in ast.walk(call)
                    if isinstance(part, ast.Constant) and isinstance(part.value, str)
                ]
                if any(len(part) > 9 for part in parts):
                    found.append((path.name, " ".join(parts)))
    return found


def test_every_refusal_is_explained() -> None:
    assert len(refusals()) > 50
    known = phrases()
    assert [said for said in refusals() if not any(phrase in said[1] for phrase in known)] == []


def test_the_page_of_methods_is_what_the_recipes_say() -> None:
    spec = importlib.util.spec_from_file_location("methods_page", ROOT / "scripts" / "tables" / "methods.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    own = {
        name: kind
        for name, kind in diffcache.CacheConfig.methods().items()
        if kind.__module__.startswith("diffcache.")
    }
    assert (ROOT / "docs" / "methods.md").read_text() == script.page(own), "run scripts/tables/methods.py"


def test_the_page_of_options_has_every_method() -> None:
    page = (ROOT / "docs" / "api" / "methods.md").read_text()
    kinds = {f"::: {kind.__module__}.{kind.__qualname__}\n" for kind in diffcache.methods().values()}
    own = {kind for kind in kinds if kind.startswith("::: diffcache.")}
    assert {kind for kind in own if kind not in page} == set()


def test_the_pages_of_the_api_have_every_public_name() -> None:
    pages = "".join(path.read_text() for path in (ROOT / "docs" / "api").glob("*.md"))
    listed = set(re.findall(r"^::: (\S+)$", pages, re.MULTILINE))
    public = {name: getattr(diffcache, name) for name in diffcache.__all__}
    assert {
        name
        for name, it in public.items()
        if not {it.__module__, f"{it.__module__}.{it.__qualname__}"} & listed
    } == set()


@pytest.mark.slow
def test_the_site_is_built_strictly_and_needs_no_network(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr[-3000:]
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) >= len(PAGES)
    loaded = r"""<(?:script|img|iframe)[^>]*src=["\']?(?:https?:)?//[^ >]*|<link[^>]*(?:stylesheet|preconnect)[^>]*//[^ >]*"""
    assert {found for page in pages for found in re.findall(loaded, page.read_text())} == set()
    told = (tmp_path / "site" / "api" / "index.html").read_text()
    assert "max_cache_bytes" in told
    assert "SpectrumConfig" in (tmp_path / "site" / "api" / "methods.html").read_text()
