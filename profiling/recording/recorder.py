"""The recorder: how much every place changes from tick to tick and what it costs, over a few prompts, in full computation.

It is an observer of the same engine that runs the methods. Features wait on disk, not in memory: beside what the engine
stores of one tick, it holds the one feature that another is compared with.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from diffcache.engine.observers import Observer
from diffcache.prediction.correctors import channel_dim
from diffcache.profiling.recording.recording import Curve
from diffcache.profiling.recording.stopwatch import Stopwatch
from diffcache.schedulers.signals import EPS
from diffcache.schedulers.steps import Step

Key = tuple[str, str]

COUNTED_TICK = 1
"""At which operations are counted: at the first one, places inside a denoiser are not known yet."""


class Recorder(Observer):
    """Streams statistics of every place's first stream.

    Args:
        lag: ticks back to which features are compared; None for the whole run.
        curves: of runs that were recorded before, which it goes on with.
        along: the runs follow what a schedule would have reused (closed loop), not the full computation.

    Attributes:
        curves: by place and branch.
        kinds: of each place, as `Step.kind`.
    """

    def __init__(
        self,
        lag: int | None = None,
        curves: Mapping[Key, Curve] = MappingProxyType({}),
        *,
        along: bool = False,
    ) -> None:
        self.lag = lag
        self.shadow = self.closed = along
        self.curves: dict[Key, Curve] = dict(curves)
        self.kinds: dict[str, str] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="diffcache-")
        self._run: dict[Key, list[int]] = {}
        self._watch = Stopwatch()

    def computing(self, denoiser: str, step: Step) -> None:
        curve = self._curve(denoiser, step)
        self._watch.begin(counting=curve.flops == 0 and step.tick == COUNTED_TICK)

    def computed(
        self, denoiser: str, step: Step, features: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> None:
        seconds, flops = self._watch.end()
        place = step.full_name(denoiser)
        self.kinds[place] = step.kind
        key, feature, curve = (place, step.branch), features[0].detach().float(), self._curve(denoiser, step)
        if seconds is not None:
            curve.note(curve.seconds, step.tick, seconds)
        curve.flops = flops or curve.flops
        ticks = self._run.setdefault(key, [])
        size = float(feature.abs().mean()) + EPS
        for tick in ticks if self.lag is None else ticks[-self.lag :]:
            other = self._load(key, tick, feature)
            if tick == step.tick - 1:
                curve.note(curve.ratio, step.tick, float((_norms(feature) / (_norms(other) + EPS)).mean()))
                curve.note(curve.cosine, step.tick, _cosine(feature, other))
            curve.note(curve.drift, (step.tick, tick), float(other.sub_(feature).abs_().mean()) / size)
        ticks.append(step.tick)
        feature.cpu().numpy().tofile(self._path(key, step.tick))

    def end_run(self) -> None:
        """A run is over: what waited on disk goes."""
        for key, ticks in self._run.items():
            self.curves[key].runs += 1
            for tick in ticks:
                self._path(key, tick).unlink()
        self._run = {}

    def close(self) -> None:
        self._watch.stop()
        self._folder.cleanup()

    def _curve(self, denoiser: str, step: Step) -> Curve:
        return self.curves.setdefault(
            (step.full_name(denoiser), step.branch), Curve.empty(step.num_ticks or 0)
        )

    def _path(self, key: Key, tick: int) -> Path:
        return Path(self._folder.name) / f"{list(self.curves).index(key)}-{tick}"

    def _load(self, key: Key, tick: int, like: Tensor) -> Tensor:
        """A feature of this run; it may be written to."""
        flat = torch.from_file(str(self._path(key, tick)), size=like.numel())
        return flat.reshape(like.shape).to(like.device)


def _norms(feature: Tensor) -> Tensor:
    """L2 norm over the channels of every token."""
    norms: Tensor = torch.linalg.vector_norm(feature, dim=channel_dim(feature))
    return norms


def _cosine(a: Tensor, b: Tensor) -> float:
    product = torch.dot(a.flatten(), b.flatten())
    return float(product / (torch.linalg.vector_norm(a) * torch.linalg.vector_norm(b) + EPS))
