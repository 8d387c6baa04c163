"""The recorder: how much every place changes from tick to tick, over a few prompts, in full computation.

It is an observer of the same engine that runs the methods. Features wait on disk, not in memory: it holds the one that
has just been computed, and one that it is compared with.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from diffcache.correctors import channel_dim
from diffcache.observing import Observer
from diffcache.profiling.recording import Curve
from diffcache.schedulers.signals import EPS
from diffcache.schedulers.steps import Step

Key = tuple[str, str]


class Recorder(Observer):
    """Streams statistics of every place's first stream.

    Args:
        lag: ticks back to which features are compared; None for the whole run.
    """

    def __init__(self, lag: int | None = None) -> None:
        self.lag = lag
        self.curves: dict[Key, Curve] = {}
        self.kinds: dict[str, str] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="diffcache-")
        self._run: dict[Key, list[int]] = {}

    def computed(
        self, denoiser: str, step: Step, features: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> None:
        place = step.place(denoiser)
        self.kinds[place] = step.kind
        key, feature = (place, step.branch), features[0].detach().float()
        ticks = self._run.setdefault(key, [])
        if key not in self.curves:
            self.curves[key] = Curve.empty(step.num_ticks or 0)
        curve = self.curves[key]
        earlier = ticks if self.lag is None else ticks[-self.lag :]
        size = feature.abs().mean() + EPS
        for tick in earlier:
            other = self._load(key, tick).to(feature.device).reshape(feature.shape)
            drift = (feature - other).abs().mean() / size
            curve.note_drift(step.tick, tick, float(drift))
            if tick == step.tick - 1:
                ratio = (_norms(feature) / (_norms(other) + EPS)).mean()
                cosine = torch.nn.functional.cosine_similarity(feature.flatten(), other.flatten(), dim=0)
                curve.note_neighbours(step.tick, float(ratio), float(cosine))
        ticks.append(step.tick)
        self._save(key, step.tick, feature)

    def end_run(self) -> None:
        """A run is over: what waited on disk goes."""
        for key, ticks in self._run.items():
            self.curves[key].runs += 1
            for tick in ticks:
                self._path(key, tick).unlink()
        self._run = {}

    def close(self) -> None:
        self._folder.cleanup()

    def _path(self, key: Key, tick: int) -> Path:
        return Path(self._folder.name) / f"{list(self.curves).index(key)}-{tick}.npy"

    def _save(self, key: Key, tick: int, feature: Tensor) -> None:
        np.save(self._path(key, tick), feature.cpu().numpy())

    def _load(self, key: Key, tick: int) -> Tensor:
        return torch.from_numpy(np.load(self._path(key, tick)))


def _norms(feature: Tensor) -> Tensor:
    """L2 norm over the channels of every token."""
    norms: Tensor = torch.linalg.vector_norm(feature, dim=channel_dim(feature))
    return norms
