"""The recorder: an observer that compares the features of each site between the ticks of a run, and measures their cost.

By "l2" and "cosine" it compares sketches, of which it keeps 8 KiB for each tick in memory. By "l1" it keeps the features of a
run on disk, and reads each again for every later tick. In memory it needs, beside what the engine stores of one tick, one
feature that another is compared with.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import Self

from diffcache.engine.observers import Observer
from diffcache.prediction.correctors import channel_dim
from diffcache.profiling.recording.each_call import STEPS_DIFFER
from diffcache.profiling.recording.recording import Curve
from diffcache.profiling.recording.sketch import sketched
from diffcache.profiling.recording.stopwatch import Stopwatch
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.signals import EPS
from diffcache.schedulers.steps import Step

Metric = Literal["l1", "l2", "cosine"]
"""How two features are compared: mean|a - b| / mean|a|; |a - b| / |a| by the L2 norm; one minus their cosine."""

Key = tuple[str, str]
"""A site and a branch."""

COUNTED_TICK = 1
"""The tick at which operations are counted. At tick 0 the sites inside a denoiser are not known yet."""


class Recorder(Observer):
    """Records statistics of every site, of the stream that continues its first latent. It is a context manager, which ends by deleting its files.

    Args:
        lag: how many ticks back features are compared; None: to the start of the run.
        curves: statistics of earlier runs, which it continues.
        metric: how features are compared.
        closed: the runs continue with what a method predicts (closed loop), not with what is computed.

    Attributes:
        curves: statistics by site and branch.
        kinds: of each site, as `Step.kind`.
    """

    def __init__(
        self,
        lag: int | None = None,
        curves: Mapping[Key, Curve] = MappingProxyType({}),
        metric: Metric = "l1",
        *,
        closed: bool = False,
    ) -> None:
        self.lag = lag
        self.metric = metric
        self._sketches: dict[tuple[Key, int], Tensor] = {}
        self._norms: dict[Key, Tensor] = {}
        self.shadow = self.closed = closed
        self.curves: dict[Key, Curve] = dict(curves)
        self.kinds: dict[str, str] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="diffcache-")
        self._run: dict[Key, list[int]] = {}
        self._watch: Stopwatch | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._folder.cleanup()

    def computing(self, denoiser: str, step: Step) -> None:
        self._stop()
        curve = self._curve(denoiser, step)
        self._watch = Stopwatch(counting=curve.flops == 0 and step.tick == COUNTED_TICK)

    def computed(
        self, denoiser: str, step: Step, features: Sequence[Tensor], outputs: Sequence[Tensor], stream: int
    ) -> None:
        seconds, flops = self._stop()
        site = step.full_name(denoiser)
        self.kinds[site] = step.kind
        key, curve = (site, step.branch), self._curve(denoiser, step)
        feature = features[stream].detach().float()
        if seconds is not None:
            curve.note(curve.seconds, step.tick, seconds)
        curve.flops = flops or curve.flops
        ticks = self._run.setdefault(key, [])
        norms, compared = _norms(feature), ticks if self.lag is None else ticks[-self.lag :]
        if ticks and ticks[-1] == step.tick - 1:
            curve.note(curve.ratio, step.tick, float((norms / (self._norms[key] + EPS)).mean()))
        compare = self._compare_features if self.metric == "l1" else self._compare_sketches
        compare(key, step.tick, feature, compared)
        ticks.append(step.tick)
        self._norms[key] = norms

    def end_run(self) -> None:
        """Counts the run that is over, and deletes its features."""
        for key, ticks in self._run.items():
            self.curves[key].runs += 1
            for tick in ticks:
                self._path(key, tick).unlink(missing_ok=True)
        self._run, self._sketches, self._norms = {}, {}, {}

    def _compare_features(self, key: Key, tick: int, feature: Tensor, others: Sequence[int]) -> None:
        """By the mean absolute difference."""
        curve, size = self.curves[key], float(feature.abs().mean()) + EPS
        for earlier in others:
            other = self._load(key, earlier, feature)
            if earlier == tick - 1:
                curve.note(curve.cosine, tick, _cosine(feature, other))
            curve.note(curve.drift, (tick, earlier), float(other.sub_(feature).abs_().mean()) / size)
        feature.cpu().numpy().tofile(self._path(key, tick))

    def _compare_sketches(self, key: Key, tick: int, feature: Tensor, others: Sequence[int]) -> None:
        """By the L2 norm or the cosine."""
        curve, sketch = self.curves[key], sketched(feature)
        size = float(torch.linalg.vector_norm(sketch)) + EPS
        for earlier in others:
            other = self._sketches[key, earlier]
            cosine = _cosine(sketch, other)
            if earlier == tick - 1:
                curve.note(curve.cosine, tick, cosine)
            distance = float(torch.linalg.vector_norm(sketch - other)) / size
            curve.note(curve.drift, (tick, earlier), distance if self.metric == "l2" else 1 - cosine)
        self._sketches[key, tick] = sketch

    def _stop(self) -> tuple[float | None, int | None]:
        """Seconds and operations of the site that is being computed; None where they are not measured."""
        watch, self._watch = self._watch, None
        return (None, None) if watch is None else watch.stop()

    def _curve(self, denoiser: str, step: Step) -> Curve:
        ticks = step.num_ticks or 0
        curve = self.curves.setdefault((step.full_name(denoiser), step.branch), Curve.empty(ticks))
        if len(curve.ratio) != ticks:
            raise ConfigError(STEPS_DIFFER)
        return curve

    def _path(self, key: Key, tick: int) -> Path:
        return Path(self._folder.name) / f"{list(self.curves).index(key)}-{tick}"

    def _load(self, key: Key, tick: int, like: Tensor) -> Tensor:
        """A feature of this run, in a tensor of its own."""
        flat = torch.from_file(str(self._path(key, tick)), size=like.numel())
        return flat.reshape(like.shape).to(like.device)


def _norms(feature: Tensor) -> Tensor:
    """L2 norm over the channels of every token."""
    norms: Tensor = torch.linalg.vector_norm(feature, dim=channel_dim(feature))
    return norms


def _cosine(a: Tensor, b: Tensor) -> float:
    product = torch.dot(a.flatten(), b.flatten())
    return float(product / (torch.linalg.vector_norm(a) * torch.linalg.vector_norm(b) + EPS))
