"""A small picture server with continuous batching: `pip install ".[serve]"` in a checkout, then `python examples/serve.py`.

    curl -X POST localhost:8000/generate -H "content-type: application/json" \
         -d '{"prompt": "red heart", "num_steps": 28, "speedup": 2.0}' -o heart.png
    curl localhost:8000/metrics

Each batch is one call of the denoiser. It takes one step of every request that is there, wherever each of them stands.
`speedup` is chosen in the body: 1 computes every step. A client that goes away has its request aborted.
`python examples/serve.py --load 32` starts the server on the loopback, sends it so many requests, and prints what it measured.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import threading
import time
import urllib.request
from collections.abc import AsyncIterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from statistics import quantiles
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI, HTTPException, Response
from PIL import Image
from pydantic import BaseModel, Field

from diffcache import serving
from diffcache.evals.harness.step_loop import Sample, StepLoop
from diffcache.evals.testbeds import zoo
from diffcache.server.request import Request
from diffcache.server.server import Server


class Body(BaseModel):
    """What a client asks for."""

    prompt: str = Field(max_length=1000)
    seed: int = 0
    num_steps: int = Field(28, ge=1, le=200)
    speedup: float = Field(1.0, ge=1.0, le=10.0)


@dataclass(eq=False)
class Job:
    """One picture on its way."""

    body: Body
    picture: Future[bytes] = field(default_factory=Future)
    sample: Sample | None = None
    request: Request | None = None
    compute_fraction: float = 1.0


class Worker(threading.Thread):
    """The one thread that computes: it admits requests, steps them all together, and hands out what is done.

    Args:
        loop: of the pipeline, step by step.
        at_once: the most requests in a batch.
        max_cache_bytes: what all caches may hold together.
    """

    def __init__(self, loop: StepLoop, at_once: int = 8, max_cache_bytes: int | None = None) -> None:
        super().__init__(daemon=True)
        self.loop, self.at_once, self.max_cache_bytes = loop, at_once, max_cache_bytes
        self.waiting: SimpleQueue[Job] = SimpleQueue()
        self.server: Server | None = None
        self.ready, self.stopping = threading.Event(), threading.Event()

    def run(self) -> None:
        denoiser = self.loop.pipe.transformer
        live: list[Job] = []
        with (
            torch.no_grad(),
            serving(denoiser, max_cache_bytes=self.max_cache_bytes, shared=()) as self.server,
        ):
            self.ready.set()
            while not self.stopping.is_set():
                self.admit(live)
                if live:
                    self.step(live)
                live = [job for job in live if not self.ended(job)]

    def admit(self, live: list[Job]) -> None:
        """Takes new requests in, as long as there is room; waits for one if there is nothing to do."""
        while len(live) < self.at_once:
            try:
                job = self.waiting.get(timeout=0.05) if not live else self.waiting.get_nowait()
            except Empty:
                return
            try:
                self.begin(job)
                live.append(job)
            except Exception as error:  # noqa: BLE001 - one bad request must not stop the server
                job.picture.set_exception(error)

    def begin(self, job: Job) -> None:
        body = job.body
        job.sample = sample = self.loop.prepare(body.prompt, body.seed, body.num_steps)
        cache = {"speedup": body.speedup} if body.speedup > 1 else {}
        job.request = self.server.request(
            body.num_steps, noise_scheduler=sample.noise_scheduler, guidance="batched", **cache
        )

    def step(self, live: list[Job]) -> None:
        """One batch: a step of every request."""
        samples = [job.sample for job in live]
        try:
            with self.server.batch([(job.request, job.sample.step) for job in live]):
                outputs = self.loop.denoise(samples)
            for sample, output in zip(samples, outputs, strict=True):
                self.loop.advance(sample, output)
        except Exception as error:  # noqa: BLE001 - out of memory, say: these are lost, the server goes on
            for job in live:
                job.picture.set_exception(error)

    def ended(self, job: Job) -> bool:
        """Whether a request is over; if so, it is given back."""
        if job.picture.cancelled() or job.picture.done():
            job.request.abort()
        elif job.sample.done:
            job.compute_fraction = job.request.report().compute_fraction
            job.request.finish()
            job.picture.set_result(as_png(self.loop.decode(job.sample)))
        else:
            return False
        return True


def as_png(picture: torch.Tensor) -> bytes:
    pixels = (picture.permute(1, 2, 0) * 255).round().byte().cpu().numpy()
    written = io.BytesIO()
    Image.fromarray(pixels).save(written, "PNG")
    return written.getvalue()


def application(worker: Worker) -> FastAPI:
    """The routes of the server."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        worker.start()
        worker.ready.wait()
        yield
        worker.stopping.set()
        worker.join()

    app = FastAPI(title="diffcache", lifespan=lifespan)

    @app.post("/generate")
    async def generate(body: Body) -> Response:
        job = Job(body)
        worker.waiting.put(job)
        try:  # a client that goes away cancels this, and with it the picture
            png = await asyncio.wrap_future(job.picture)
        except Exception as error:
            raise HTTPException(500, f"{type(error).__name__}: {error}") from error
        return Response(
            png, media_type="image/png", headers={"x-compute-fraction": f"{job.compute_fraction:.3f}"}
        )

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(worker.server.metrics(), media_type="text/plain; version=0.0.4")

    return app


@dataclass(frozen=True)
class Answer:
    seconds: float
    compute_fraction: float
    png: bytes


def ask(url: str, body: dict[str, Any]) -> Answer:
    """Sends one request and waits for its picture."""
    began = time.perf_counter()
    sent = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(sent, timeout=600) as answer:
        return Answer(time.perf_counter() - began, float(answer.headers["x-compute-fraction"]), answer.read())


def load(url: str, bodies: list[dict[str, Any]], clients: int) -> dict[str, float]:
    """Sends requests from so many clients at once, and measures."""
    began = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        answers = list(pool.map(lambda body: ask(url, body), bodies))
    seconds = time.perf_counter() - began
    cuts = quantiles([answer.seconds for answer in answers], n=20)
    return {
        "requests": len(answers),
        "requests_per_second": len(answers) / seconds,
        "median_latency_s": cuts[9],
        "p95_latency_s": cuts[18],
        "compute_fraction": sum(answer.compute_fraction for answer in answers) / len(answers),
    }


@asynccontextmanager
async def running(app: FastAPI, port: int) -> AsyncIterator[str]:
    """The server in the background; yields its address."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning"))
    task = asyncio.create_task(server.serve())
    while not (server.started or task.done()):
        await asyncio.sleep(0.05)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task


async def load_test(
    worker: Worker, requests: int, clients: int, speedup: float, steps: int = 28
) -> dict[str, float]:
    """Starts the server on the loopback, loads it, and gives what was measured."""
    prompts = zoo.prompts("sd3", requests, "heldout")
    bodies = [
        {"prompt": prompt, "seed": seed, "num_steps": steps, "speedup": speedup}
        for seed, prompt in enumerate(prompts)
    ]
    async with running(application(worker), 0) as url:
        return await asyncio.to_thread(load, f"{url}/generate", bodies, clients)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--at-once", type=int, default=8, help="the most requests in a batch")
    parser.add_argument("--max-cache-bytes", type=int, help="of all requests together")
    parser.add_argument("--load", type=int, help="measure with so many requests, and stop")
    args = parser.parse_args()
    torch.set_num_threads(1)  # a network as small as the testbed's is slower with more

    def worker() -> Worker:
        return Worker(StepLoop(zoo.load("sd3")), args.at_once, args.max_cache_bytes)

    if args.load is None:
        uvicorn.run(application(worker()), host="127.0.0.1", port=args.port)
        return
    for speedup in (1.0, 2.0, 3.0):
        found = asyncio.run(load_test(worker(), args.load, args.at_once, speedup))
        print(f"speedup={speedup:g}", {name: round(value, 3) for name, value in found.items()})


if __name__ == "__main__":
    main()
