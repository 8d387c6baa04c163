"""The example server: requests over HTTP get the pictures that they would get alone."""

from __future__ import annotations

import asyncio
import io
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from diffcache.evals.harness.step_loop import StepLoop
from diffcache.evals.testbeds import zoo

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")


@pytest.fixture(scope="module")
def example() -> Any:
    path = Path(__file__).resolve().parents[2] / "examples" / "serve.py"
    spec = spec_from_file_location("serve", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    import sys

    sys.modules["serve"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def loop() -> StepLoop:
    return StepLoop(zoo.load("sd3"))


def test_clients_get_their_pictures(example: Any, loop: StepLoop) -> None:
    prompts = zoo.prompts("sd3", 3)
    bodies = [
        {"prompt": prompts[0], "seed": 1, "num_steps": 6},
        {"prompt": prompts[1], "seed": 2, "num_steps": 8, "speedup": 2.0},
        {"prompt": prompts[2], "seed": 3, "num_steps": 4, "speedup": 1.0},
    ]

    async def served() -> tuple[list[Any], str]:
        app = example.application(example.Worker(loop, at_once=2))
        async with example.running(app, 0) as url:
            asked = [asyncio.to_thread(example.ask, f"{url}/generate", body) for body in bodies]
            answers = await asyncio.gather(*asked)
            with pytest.raises(example.urllib.error.HTTPError, match="422"):
                await asyncio.to_thread(example.ask, f"{url}/generate", {"prompt": "x", "speedup": 0.5})
            metrics = await asyncio.to_thread(example.urllib.request.urlopen, f"{url}/metrics")
            return answers, metrics.read().decode()

    answers, metrics = asyncio.run(served())
    assert [answer.compute_fraction for answer in answers] == [1.0, 0.5, 1.0]
    assert 'diffcache_requests_ended_total{state="finished"} 3.0' in metrics
    for body, answer in zip(bodies, answers, strict=True):
        if "speedup" not in body:
            sample = loop.prepare(body["prompt"], body["seed"], body["num_steps"])
            while not sample.done:
                loop.advance(sample, loop.denoise([sample])[0])
            plain = torch.frombuffer(
                bytearray(Image.open(io.BytesIO(example.as_png(loop.decode(sample)))).tobytes()),
                dtype=torch.uint8,
            )
            given = torch.frombuffer(
                bytearray(Image.open(io.BytesIO(answer.png)).tobytes()), dtype=torch.uint8
            )
            assert (plain.int() - given.int()).abs().max() <= 1


def test_a_client_that_goes_away_frees_its_place(example: Any, loop: StepLoop) -> None:
    async def left() -> dict[str, int]:
        worker = example.Worker(loop, at_once=1)
        async with example.running(example.application(worker), 0):
            gone = example.Job(example.Body(prompt="red heart", num_steps=200))
            next_one = example.Job(example.Body(prompt="red heart", num_steps=2))
            worker.waiting.put(gone)
            worker.waiting.put(next_one)
            while not worker.server.stats().batches:
                await asyncio.sleep(0.01)
            gone.picture.cancel()
            await asyncio.wrap_future(next_one.picture)
            return dict(worker.server.stats().ended)

    assert asyncio.run(left()) == {"aborted": 1, "finished": 1}
