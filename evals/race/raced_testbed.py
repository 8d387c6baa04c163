"""One testbed in the race: its full run and references, and the measurements of contenders on it."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor

from diffcache.evals.harness.fewer_steps import OWN, noise_schedulers, render_with_steps
from diffcache.evals.harness.loop_time import ratio_in_turns
from diffcache.evals.harness.quality import REFERENCE_STEPS, Quality, References, kid_to_real
from diffcache.evals.harness.rendering import render
from diffcache.evals.race.contender import Contender, Setup
from diffcache.evals.race.flops import counted_flops
from diffcache.evals.race.live_memory import live_memory
from diffcache.evals.testbeds import zoo

REAL_PICTURES = 512
FULL, FEWER = "full run", "fewer steps"


@dataclass(frozen=True, kw_only=True)
class Measurement(Quality):
    """One contender at one setting.

    Attributes:
        name, package, knob, setting: of the contender; package is "" for the plain pipeline.
        compute: floating-point operations in the denoiser, as a share of the full run's.
        psnr_reference: always measured, in dB.
        kid: always measured.
        cache_bytes: tensor memory alive half-way, beyond the full run's.
        loop_time: processor time of the denoising loop as a share of the full run's, measured in turns; None where it
            was not measured.
    """

    name: str
    package: str
    knob: str
    setting: float
    compute: float
    psnr_reference: float
    kid: float
    cache_bytes: int
    loop_time: float | None = None


@dataclass(frozen=True)
class _Run:
    pictures: Tensor
    flops: int
    live_bytes: int


class RacedTestbed:
    """A testbed, its full run, and what everything is compared with.

    Args:
        name: of the testbed.
        samples: seeds, with one held-out prompt each.
        steps: of the full run.
    """

    def __init__(self, name: str, samples: int, steps: int) -> None:
        self.setup = Setup(name, steps)
        self.samples = samples
        self._full = self._run(steps)
        reference = self._run(REFERENCE_STEPS).pictures
        self._references = References(self._full.pictures, reference, kid_to_real(name, REAL_PICTURES))

    def full(self) -> Measurement:
        return self._measurement(self._full, name=FULL, package="", knob="steps", setting=self.setup.steps)

    def fewer_steps(self, steps: int) -> Iterator[Measurement]:
        """The plain pipeline with so many steps, under each noise scheduler."""
        for name in noise_schedulers(zoo.load(self.setup.testbed)):
            run = self._run(steps, noise_scheduler=name)
            yield self._measurement(run, name=f"{FEWER}, {name}", package="", knob="steps", setting=steps)

    def measured(self, contender: Contender, setting: float) -> Measurement:
        """A contender at a setting, on a freshly loaded pipeline."""
        run = self._run(self.setup.steps, contender, setting)
        return self._measurement(
            run, name=contender.name, package=contender.package, knob=contender.knob, setting=setting
        )

    def timed(self, measurement: Measurement, contender: Contender, rounds: int) -> Measurement:
        """The same measurement with its loop time; nothing else is measured in these runs."""
        ratio = ratio_in_turns(
            lambda: self._cpu_seconds(contender, measurement.setting), self._cpu_seconds, rounds
        )
        return replace(measurement, loop_time=round(ratio, 3))

    def _run(
        self,
        steps: int,
        contender: Contender | None = None,
        setting: float = 0,
        noise_scheduler: str = OWN,
    ) -> _Run:
        pipe = zoo.load(self.setup.testbed)
        replacement = noise_schedulers(pipe)[noise_scheduler]
        with ExitStack() as stack:
            flops = stack.enter_context(counted_flops(pipe))
            memory = stack.enter_context(live_memory(replacement, steps // 2))
            if contender is not None:
                stack.enter_context(contender.attach(pipe, setting, self.setup))
            rendered = render_with_steps(pipe, self._call(), steps, replacement)
        assert memory.bytes is not None
        return _Run(rendered.pictures, flops.total, memory.bytes)

    def _cpu_seconds(self, contender: Contender | None = None, setting: float = 0) -> float:
        pipe = zoo.load(self.setup.testbed)
        with ExitStack() as stack:
            if contender is not None:
                stack.enter_context(contender.attach(pipe, setting, self.setup))
            return render(pipe, self._call()).cpu_seconds

    def _call(self) -> dict[str, Any]:
        return zoo.sample_call(self.setup.testbed, 0, self.setup.steps, self.samples)

    def _measurement(self, run: _Run, **contender: Any) -> Measurement:
        return Measurement(
            **asdict(self._references.quality(run.pictures)),
            **contender,
            compute=round(run.flops / self._full.flops, 4),
            cache_bytes=run.live_bytes - self._full.live_bytes,
        )
