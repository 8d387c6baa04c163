"""The recorder: its statistics, and how little it holds in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.searches.flux_calls import FLUX
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from diffcache import accelerate, report
from diffcache.engine.observers import observed
from diffcache.profiling.recording.recorder import Recorder
from diffcache.recipes.uniform import UniformConfig
from diffcache.schedulers.steps import Step

STEPS = 6


def test_drift_ratio_and_cosine_are_means_over_runs() -> None:
    with Recorder() as recorder:
        for scale in (1.0, 3.0):
            for tick, value in enumerate((1.0, 2.0, 2.0 + scale)):
                recorder.computed("net", Step(tick, 3, "0"), [torch.full((1, 2, 4), value)], [], 0)
            recorder.end_run()
        assert not list(Path(recorder._folder.name).iterdir())  # nothing is left on disk after a run
    curve = recorder.curves["net", "0"]
    assert curve.drift[1, 0].item() == pytest.approx(1 / 2)
    assert curve.drift[2, 1].item() == pytest.approx((1 / 3 + 3 / 5) / 2)
    assert curve.drift[2, 0].item() == pytest.approx((2 / 3 + 4 / 5) / 2)
    assert curve.drift[0].isnan().all()
    assert curve.ratio.tolist() == pytest.approx([1, 2, (3 / 2 + 5 / 2) / 2])
    assert curve.cosine.tolist() == pytest.approx([1, 1, 1])


class Live(TorchDispatchMode):
    """Counts the bytes of tensors that operations make while it is entered; `peak` is the most at once."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._known: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        given = {t.untyped_storage()._cdata for t in tree_iter((args, kwargs)) if isinstance(t, Tensor)}
        for tensor in (t for t in tree_iter(output) if isinstance(t, Tensor)):
            storage = tensor.untyped_storage()
            if storage._cdata not in given:
                self._known[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self._known = {key: known for key, known in self._known.items() if not known[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._known.values()))
        return output


class Measured(Recorder):
    """A recorder that measures its own memory."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = self.largest = 0  # bytes

    def computed(
        self, denoiser: str, step: Step, features: Sequence[Tensor], outputs: Sequence[Tensor], stream: int
    ) -> None:
        with Live() as live:
            super().computed(denoiser, step, features, outputs, stream)
        self.extra, self.largest = max(self.extra, live.peak), max(self.largest, features[0].nbytes)


def test_recording_holds_less_than_three_ticks_of_features() -> None:
    pipe, recorder = FLUX.build(), Measured()
    accelerate(pipe, UniformConfig(interval=1))
    with recorder, observed(recorder):
        FLUX.render(pipe, 0, STEPS)
    one_tick = report(pipe).cache_bytes
    assert one_tick == recorder.largest  # the engine's own, of one branch
    assert 0 < recorder.extra < 2 * one_tick
