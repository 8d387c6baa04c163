"""The code in docs/serving.md runs, and so do the examples that it names."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.shared_loop import Job, Waves, alone, guided, noise_scheduler
from torch import Tensor

from diffcache import serving

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "serving.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def run(block: str, **names: Any) -> dict[str, Any]:
    exec(compile(block, PAGE.name, "exec"), names)  # noqa: S102
    return names


def block_with(text: str) -> str:
    [found] = [block for block in BLOCKS if text in block]
    return found


def example(name: str) -> dict[str, Any]:
    assert f"examples/{name}.py" in PAGE.read_text()
    return run((ROOT / "examples" / f"{name}.py").read_text())


def test_there_are_as_many_blocks_as_tests() -> None:
    assert len(BLOCKS) == 2


def test_first_block() -> None:
    denoiser, x = Waves(), torch.randn(3, 4, 16)
    named = run(
        block_with("server.request(28"),
        denoiser=denoiser,
        make_scheduler=noise_scheduler,
        latents=x,
        timesteps=torch.tensor([900.0, 500.0, 999.0]),
    )
    assert torch.equal(named["output"][0], denoiser(x, torch.tensor([900.0, 500.0, 999.0]))[0])


def test_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("prometheus_client")
    run(block_with("stats.hit_rate"), serving=serving, denoiser=Waves())
    assert "diffcache_batches_total 0.0" in capsys.readouterr().out


class Pipeline:
    """The four operations of a pipeline of vLLM-Omni."""

    def __init__(self, denoiser: Waves) -> None:
        self.denoiser = denoiser

    def prepare_encode(self, state: Any) -> None:
        state.scheduler = noise_scheduler(state.job.steps)
        state.timesteps, state.latents = state.scheduler.timesteps, state.job.noise()

    def denoise_step(self, batch: Any) -> Tensor:
        times = torch.stack([state.timesteps[state.step_index] for state in batch.states])
        prompts = torch.cat([state.job.prompt() for state in batch.states])
        output: Tensor = self.denoiser(torch.cat([s.latents for s in batch.states]), times, prompts)[0]
        return output

    def step_scheduler(self, state: Any, prediction: Tensor) -> None:
        time = state.timesteps[state.step_index]
        state.latents = state.scheduler.step(prediction, time, state.latents)[0]
        state.step_index += 1


def test_the_runner_of_vllm_omni() -> None:
    denoiser = Waves()
    jobs = [Job("uniform", (("interval", 2),), 6, seed=1), Job("easycache", (("threshold", 0.3),), 9, seed=2)]
    with torch.no_grad(), serving(denoiser) as server:
        runner = example("vllm_omni")["CachedSteps"](Pipeline(denoiser), server)
        states = []
        for name, job in zip("abc", [*jobs, jobs[0]], strict=True):
            sampling = SimpleNamespace(cache=job.config())
            state = SimpleNamespace(request_id=name, job=job, sampling=sampling, step_index=0)
            runner.admit(state)
            states.append(state)
        runner.abort(states.pop().request_id)
        while live := [state for state in states if state.request_id in runner.requests]:
            runner.step(SimpleNamespace(states=live))
        assert server.stats().ended == {"aborted": 1, "finished": 2}
        assert server.stats().hit_rate > 0
    for state in states:
        assert torch.equal(state.latents, alone(denoiser, state.job))


class Stage:
    """A denoising stage of SGLang diffusion: one request, whose guidance passes are two calls."""

    def __init__(self, denoiser: Waves) -> None:
        self.transformer = denoiser

    def _prepare_denoising_loop(self, batch: Any, server_args: Any) -> Any:
        made = noise_scheduler(batch.job.steps)
        return SimpleNamespace(scheduler=made, timesteps=made.timesteps, latents=batch.job.noise())

    def _run_denoising_step(self, ctx: Any, step: Any, batch: Any, server_args: Any) -> None:
        time, prompt = ctx.timesteps[step.step_index], batch.job.prompt()
        predict: Callable[[Tensor], Tensor] = lambda p: self.transformer(ctx.latents, time.expand(1), p)[0]
        prediction = guided(predict(torch.zeros_like(prompt)), predict(prompt))
        ctx.latents = ctx.scheduler.step(prediction, time, ctx.latents)[0]


def test_the_stage_of_sglang() -> None:
    denoiser = Waves()
    jobs = [Job("uniform", (("interval", n),), 6, seed=n, guidance="apart") for n in (2, 3)]
    batches = [SimpleNamespace(job=job, do_classifier_free_guidance=True, cache=job.config()) for job in jobs]
    with torch.no_grad(), serving(denoiser) as server:
        stage = example("sglang_diffusion")["CachedStage"](Stage(denoiser), server)
        contexts = [stage.prepare(batch, None) for batch in batches]
        for i in range(6):  # requests take turns, step by step
            for ctx, batch in zip(contexts, batches, strict=True):
                stage.run_step(ctx, SimpleNamespace(step_index=i), batch, None)
        assert server.stats().hit_rate > 0
    for ctx, job in zip(contexts, jobs, strict=True):
        assert torch.equal(ctx.latents, alone(denoiser, job))
