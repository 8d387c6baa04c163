"""The recorder: its statistics, what it holds in memory, and that an interrupted recording ends like one that was not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import FlowMatchHeunDiscreteScheduler
from harness import reference
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from toys import by_embeds, toy_pipeline
from zoo.pipelines import CASES

from diffcache import accelerate, report
from diffcache.engine.observers import observed
from diffcache.evals.race.flops import counted_flops
from diffcache.profiling.recording.drawing import draw
from diffcache.profiling.recording.record import record
from diffcache.profiling.recording.recorder import Recorder
from diffcache.profiling.recording.recording import STATISTICS, Recording
from diffcache.recipes.uniform import UniformConfig
from diffcache.schedulers.errors import ConfigError, ScheduleError
from diffcache.schedulers.steps import Step

FLUX = CASES["FluxPipeline"]
STEPS = 6
KEPT = [name for name in STATISTICS if name != "seconds"]


def calls(count: int = 2) -> list[dict[str, Any]]:
    return [FLUX.call(seed, STEPS) for seed in range(count)]


def same(a: Recording, b: Recording) -> bool:
    return a.places == b.places and all(
        torch.equal(getattr(a.curves[key], name).nan_to_num(), getattr(b.curves[key], name).nan_to_num())
        for key in a.curves | b.curves
        for name in KEPT
    )


def test_drift_ratio_and_cosine_are_means_over_runs() -> None:
    recorder = Recorder()
    for scale in (1.0, 3.0):
        for tick, value in enumerate((1.0, 2.0, 2.0 + scale)):
            recorder.computed("net", Step(tick, 3, "0"), [torch.full((1, 2, 4), value)], [])
        recorder.end_run()
    curve = recorder.curves["net", "0"]
    assert curve.drift[1, 0].item() == pytest.approx(1 / 2)
    assert curve.drift[2, 1].item() == pytest.approx((1 / 3 + 3 / 5) / 2)
    assert curve.drift[2, 0].item() == pytest.approx((2 / 3 + 4 / 5) / 2)
    assert curve.drift[0].isnan().all()
    assert curve.ratio.tolist() == pytest.approx([1, 2, (3 / 2 + 5 / 2) / 2])
    assert curve.cosine.tolist() == pytest.approx([1, 1, 1])
    assert not list(Path(recorder._folder.name).iterdir())  # nothing is left on disk after a run
    recorder.close()


def test_a_recording_is_saved_loaded_and_checked(tmp_path: Path) -> None:
    pipe = FLUX.build()
    recording = record(pipe, calls())
    assert torch.equal(FLUX.render(pipe, 0, STEPS), reference("FluxPipeline", 0, STEPS))
    again = Recording.load(recording.save(tmp_path))
    assert again.models == recording.models
    assert same(again, recording)
    assert again.leading.flops == recording.leading.flops
    (tmp_path / "recording.json").write_text("{")
    with pytest.raises(ScheduleError, match="damaged"):
        Recording.load(tmp_path)


def test_nothing_to_record_is_refused() -> None:
    with pytest.raises(ConfigError, match="calls: give at least one"):
        record(FLUX.build(), [])


def test_what_places_cost_is_measured() -> None:
    recording = record(FLUX.build(), calls(1), sites="sub-layer")
    assert {place.kind for place in recording.places.values()} > {"feed-forward"}
    assert all(curve.flops > 0 for curve in recording.curves.values())
    ticks = torch.stack([curve.seconds for curve in recording.curves.values()])
    assert (ticks[:, 1:] > 0).all()
    assert ticks[:, 0].isnan().all()  # places inside are not known yet, and their operations are traced
    pipe = FLUX.build()
    with counted_flops(pipe) as plain:
        FLUX.render(pipe, 0, STEPS)
    whole = record(pipe, calls(1))
    assert sum(curve.flops for curve in whole.curves.values()) * STEPS == plain.total
    assert whole.leading.flops > sum(curve.flops for curve in recording.curves.values())
    assert whole.table().count("\n") == 2


class Killed(Exception):
    """What a run dies of."""


def test_an_interrupted_recording_ends_like_one_that_was_not(tmp_path: Path) -> None:
    pipe, alive = FLUX.build(), False

    def die(pipe: Any, step: int, time: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        if step == 2 and not alive:
            raise Killed
        return tensors

    asked = [*calls(2), {**FLUX.call(2, STEPS), "callback_on_step_end": die}]
    for done in (0, 2):  # from the start, and where it stopped
        assert done == 0 or Recording.load(tmp_path / "two").runs == done
        with pytest.raises(Killed):
            record(pipe, asked, folder=tmp_path / "two")
    alive = True
    continued = record(pipe, asked, folder=tmp_path / "two")
    assert same(continued, record(pipe, asked))
    assert same(record(pipe, asked, folder=tmp_path / "two"), continued)  # nothing is left to do
    assert len(list((tmp_path / "two").iterdir())) == 2
    with pytest.raises(ScheduleError, match="another hash"):
        record(pipe, [*asked[:2], FLUX.call(3, STEPS)], folder=tmp_path / "two")
    other = {**asked[2], "prompt_embeds": asked[2]["prompt_embeds"] + 1}
    with pytest.raises(ScheduleError, match="another hash"):
        record(pipe, [*asked[:2], other], folder=tmp_path / "two")
    with pytest.raises(ScheduleError, match="another transformer"):
        record(CASES["WanPipeline"].build(), asked, folder=tmp_path / "two")
    pipe.scheduler = FlowMatchHeunDiscreteScheduler()
    with pytest.raises(ScheduleError, match="another noise scheduler"):
        record(pipe, asked, folder=tmp_path / "two")


class Live(TorchDispatchMode):
    """Most bytes that operations inside have made and that were alive at once."""

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
    """Counts what each note of a feature takes in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = self.largest = 0  # bytes

    def computed(
        self, denoiser: str, step: Step, features: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> None:
        with Live() as live:
            super().computed(denoiser, step, features, outputs)
        self.extra, self.largest = max(self.extra, live.peak), max(self.largest, features[0].nbytes)


def test_recording_holds_less_than_three_ticks_of_features() -> None:
    pipe, recorder = FLUX.build(), Measured()
    accelerate(pipe, UniformConfig(interval=1))
    with observed(recorder):
        FLUX.render(pipe, 0, STEPS)
    recorder.close()
    one_tick = report(pipe).cache_bytes
    assert one_tick == recorder.largest  # the engine's own, of one branch
    assert 0 < recorder.extra < 2 * one_tick


def test_a_recording_needs_one_denoising_loop_for_each_call() -> None:
    pipe = toy_pipeline()
    with pytest.raises(ValueError, match="one denoising loop"):
        record(pipe, [{"embeds": by_embeds(), "loops": 2}])


def test_a_recording_is_drawn(tmp_path: Path) -> None:
    path = draw(record(FLUX.build(), calls(1), sites="block"), tmp_path / "recording.png")
    assert path.stat().st_size > 10_000
