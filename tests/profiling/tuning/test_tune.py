"""tune keeps a quality or a speed-up on prompts that nothing depended on, and says how sure that is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch
from support.searches.flux_calls import FLUX, flux_calls
from zoo.pipelines import CASES

from diffcache import Schedule, accelerate, report, tune
from diffcache.attach.attachment import diffusion_attachment_of, key_of
from diffcache.command.show import show
from diffcache.profiling.recording import full_runs
from diffcache.profiling.recording.full_runs import FullRuns
from diffcache.profiling.recording.journal import Journal, journaling
from diffcache.profiling.recording.pictures import relative_errors
from diffcache.profiling.recording.shares import TooLittle
from diffcache.profiling.tuning import tune as tune_module
from diffcache.profiling.tuning.aim import Aim
from diffcache.profiling.tuning.artifact import TUNE, missed
from diffcache.profiling.tuning.engine import Task
from diffcache.profiling.tuning.engines import ENGINES
from diffcache.profiling.tuning.judged import Judged
from diffcache.profiling.tuning.parts import three_parts
from diffcache.profiling.tuning.tuner import Tuner
from diffcache.recipes.even import EvenConfig
from diffcache.recipes.replay import ReplayConfig
from diffcache.recipes.trajectory import TrajectoryConfig
from diffcache.schedulers import schedule_file
from diffcache.schedulers.errors import ConfigError, ScheduleError, TargetError
from diffcache.schedulers.guidance import Guidance
from diffcache.trajectory.kernel import UniversalKernel

STEPS = 8


def tuner(steps: int = STEPS, count: int = 5) -> Tuner:
    parts = three_parts(flux_calls(steps, count), 1)
    return Tuner(Task(pipe=FLUX.build(), calls=parts.fit, ticks=steps), parts)


def test_tune_meets_a_speedup_exactly_and_is_no_worse_than_even_ticks_where_it_chose() -> None:
    found = tuner()
    best = found.for_compute(0.5)
    assert best.compute == 0.5
    evens = [found.judge(EvenConfig(speedup=2, order=order)) for order in (0, 1, 2)]
    assert best.mean >= max(even.mean for even in evens)


@pytest.mark.parametrize(
    ("beyond", "least", "compute"),
    [(0.04, 0.0, 0.4775), (0.0, 0.0, 0.5), (0.04, 0.46, 0.50875), (0.4, 0.0, 0.65)],
)
def test_a_method_that_decides_in_the_run_is_calibrated_for_less_until_it_meets_the_share(
    beyond: float, least: float, compute: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It computes more on the calls to choose on than on those to fit on, and cannot be calibrated for less than some share."""
    found = tuner()

    def propose(share: float) -> Iterator[EvenConfig]:
        if share < least:
            raise TooLittle("no threshold is large enough")
        yield EvenConfig(speedup=1 / share)

    monkeypatch.setattr(found.engine, "propose", propose)
    monkeypatch.setattr(type(found.engine), "adaptive", True)
    monkeypatch.setattr(
        found, "judge", lambda config: Judged(config, 1 / config.speedup + beyond, torch.zeros(2))
    )
    assert found.for_compute(0.5).compute == pytest.approx(compute)


@pytest.mark.parametrize(
    ("engine", "steps", "speedup", "sentence"),
    [
        (
            "dpcache",
            10,
            2,
            "speedup=2 is more than the engine dpcache can do in 10 steps: ask for less, take more steps",
        ),
        (
            "ertacache",
            6,
            6,
            "speedup=6 is more than the engine ertacache can do in 6 steps: ask for at most 3,",
        ),
    ],
)
def test_a_speedup_that_an_engine_cannot_meet_is_refused_in_its_own_words(
    engine: str, steps: int, speedup: float, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        tune(FLUX.build(), flux_calls(steps, 3), speedup=speedup, engine=engine)


def test_a_speedup_that_is_missed_is_said() -> None:
    told = missed({"speedup": 2.0}, {"compute_fraction": 0.504})
    assert "speedup=2 was missed: 50.4% of the work is computed" in str(told)
    assert missed({"speedup": 2.0}, {"compute_fraction": 0.5}) is None
    assert missed({"quality": 35.0}, {"compute_fraction": 0.504}) is None


def test_numbers_of_numpy_are_numbers() -> None:
    aim = Aim(quality=np.float32(30), at_least=np.float64(0.5))
    assert json.dumps(aim.as_json()) == '{"quality": 30.0, "at_least": 0.5}'
    assert type(Aim(speedup=np.int64(2)).speedup) is int


def test_the_error_that_is_expected_of_a_schedule_is_the_one_that_was_measured_where_it_was_chosen() -> None:
    found = tuner()
    for config in (TrajectoryConfig(speedup=2), EvenConfig(speedup=2)):
        judged = found.judge(config)
        assert isinstance(judged.config, ReplayConfig)
        pictures, full = found.choosing.cached(judged.config), found.choosing.pictures
        expected = median(relative_errors(pictures, full).tolist())
        assert judged.config.schedule.expected_error == pytest.approx(expected) != 0
        assert (
            found.verified(judged, Aim(speedup=2), found.parts.verify)["expected_error"]
            == judged.config.schedule.expected_error
        )


def test_a_covariance_is_smoothed_as_guidance_is_strong(monkeypatch: pytest.MonkeyPatch) -> None:
    case, asked = CASES["StableDiffusionPipeline"], []
    plain = UniversalKernel.at
    monkeypatch.setattr(
        UniversalKernel, "at", lambda kernel, strength: asked.append(strength) or plain(kernel, strength)
    )
    pipe, call = case.build(), {**case.call(0, STEPS), "guidance_scale": 7.5}
    engine = ENGINES["trajectory"](Task(pipe=pipe, calls=[call], ticks=STEPS))
    assert len(engine.covariances) == 3
    assert engine.measured is not None
    assert asked == [Guidance(7.5, shown=engine.measured.amplification).strength]
    assert asked != [engine.measured.amplification]


def test_two_denoisers_are_planned_with_their_own_covariance() -> None:
    case, steps = CASES["WanPipeline-two-experts"], 12
    pipe = case.build()
    engine = ENGINES["trajectory"](Task(pipe=pipe, calls=[case.call(0, steps)], ticks=steps))
    handover = sum(time >= 875 for time in pipe.scheduler.timesteps) if engine.measured else 0
    assert engine.measured is not None
    assert engine.measured.handovers == (handover,)
    assert len(engine.covariances) == 1  # smoothing would fill one denoiser's ticks from the other's
    proposed = [config for config in engine.propose(0.5) if isinstance(config, TrajectoryConfig)]
    own = [config for config in proposed if config.covariance is not None]
    of_own = product((None, engine.response), ("own", "universal"))
    assert [(config.response, config.predicts_with) for config in own] == list(of_own)
    *_, lasting = np.array(engine.response)  # the sample of the first call of a denoiser is not known
    assert lasting[handover] == pytest.approx((lasting[handover - 1] + lasting[handover + 1]) / 2)
    for config in own:
        accelerate(pipe, config)
        case.render(pipe, 0, steps)
        ticks = report(pipe).computed_ticks
        assert len(ticks) == steps // 2
        assert handover in ticks


def test_where_velocities_cannot_be_measured_the_universal_plan_is_proposed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def other_prompt(pipe: Any, tick: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        return {"prompt_embeds": tensors["prompt_embeds"] + (tick == 1)}

    case = CASES["StableDiffusionPipeline"]
    call = {**case.call(0, STEPS), "callback_on_step_end": other_prompt}
    call["callback_on_step_end_tensor_inputs"] = ["prompt_embeds"]
    engine = ENGINES["trajectory"](Task(pipe=case.build(), calls=[call], ticks=STEPS))
    proposed = list(engine.propose(0.5))
    assert [type(config) for config in proposed] == [TrajectoryConfig, *[EvenConfig] * 3]
    assert proposed[0] == TrajectoryConfig(speedup=2)
    assert "nothing can be measured here. Plans are made with the universal covariance only" in caplog.text


def test_tune_counts_the_first_call_of_a_second_denoiser() -> None:
    """Its first call cannot be reused, whatever ticks are chosen."""
    case = CASES["WanPipeline-two-experts"]
    calls = [case.call(seed, STEPS) for seed in range(3)]
    schedule = tune(case.build(), calls, speedup=2)
    assert schedule.measured["compute_fraction"] <= 0.5


def test_the_artifact_says_what_was_measured_on_which_part(tmp_path: Path) -> None:
    pipe = FLUX.build()
    schedule = tune(pipe, flux_calls(STEPS, 6), quality=20.0, at_least=0.5, folder=tmp_path)
    measured = json.loads((tmp_path / TUNE).read_text())["measured"]
    assert measured == json.loads(json.dumps(schedule.measured))
    assert measured["fit"] == {"calls": 2}
    assert measured["choose"]["samples"] == measured["verify"]["samples"] == 2
    for of in (measured["choose"], measured["verify"], measured["verify"]["even ticks at this compute"]):
        assert of["median"] == of["mean"]  # of two samples
    assert measured["verify"]["kept"] == 2
    assert measured["verify"]["least share that keeps it"] == pytest.approx(0.05**0.5, abs=1e-4)
    assert measured["verify"]["holds"] is False  # two samples cannot show that half of all keep it
    assert measured["verify"]["samples that could show it"] == 5
    assert "even ticks at this compute" in measured["verify"]
    steps = measured["verify"]["fewer steps at this compute"]["num_inference_steps"]
    assert steps == len(schedule.computed_ticks)
    assert schedule.producer["quality"] == 20.0
    accelerate(pipe, tmp_path)
    FLUX.render(pipe, 9, STEPS)
    assert report(pipe).compute_fraction == schedule.measured["compute_fraction"]
    accelerate(pipe, quality=20.0, prompts=flux_calls(STEPS, 6), at_least=0.5)
    FLUX.render(pipe, 9, STEPS)
    assert report(pipe).compute_fraction == schedule.measured["compute_fraction"]


def test_a_quality_is_kept_on_every_sample_where_there_are_too_few_to_let_one_go() -> None:
    found = tuner()
    values = found.judge(EvenConfig(speedup=2)).values
    between = float(values.sort().values[:2].mean())
    best = found.for_quality(between, 0.9)
    assert bool((best.values >= between).all())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "either speedup= or quality="),
        ({"quality": 30, "speedup": 2}, "either speedup= or quality="),
        ({"speedup": 0}, "speedup must be a number >= 1"),
        ({"speedup": 1 / 1.7}, "speedup must be a number >= 1"),
        ({"speedup": -1}, "speedup must be a number >= 1"),
        ({"quality": "high"}, "quality='high': give a PSNR in dB"),
        ({"quality": 30, "at_least": 1.7}, "at_least=1.7: give a share"),
        ({"quality": 30, "at_least": 0}, "at_least=0: give a share"),
        ({"speedup": 2, "at_least": 0.9}, "pass quality= as well"),
        ({"speedup": 2, "minutes": 0}, "minutes=0: give a number above 0"),
        ({"speedup": 2, "engine": "magic"}, "choose one of"),
        ({"speedup": 2, "folder": __file__}, "is a file: name a folder"),
        ({"speedup": 2, "folder": 3}, "folder=3: give a folder's path"),
        ({"speedup": 2, "folder": ""}, "folder='': give a folder's path"),
        ({"speedup": 2, "seed": "x"}, "seed='x': give a whole number"),
        ({"speedup": 2, "seed": 1.5}, "seed=1.5: give a whole number"),
        ({"speedup": 2, "seed": None}, "seed=None: give a whole number"),
        ({"speedup": 2, "objective": "ssim"}, "give a function of pictures"),
    ],
)
def test_tune_refuses_before_it_renders(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        tune(None, ["a", "b", "c"], **options)


def test_tune_refuses_a_text_no_prompts_and_a_denoiser() -> None:
    for prompts in ("ab", [], [1, 2, 3], (prompt for prompt in "abc")):
        with pytest.raises(ConfigError, match="a list of prompts"):
            tune(None, prompts, quality=30)
    with pytest.raises(TargetError, match="give it the pipeline"):
        tune(torch.nn.Linear(1, 1), ["a", "b", "c"], quality=30)  # type: ignore[arg-type]
    with pytest.raises(TargetError, match="pass a Diffusers pipeline"):
        tune("black-forest-labs/FLUX.1-dev", ["a", "b", "c"], speedup=2)


def test_tune_refuses_what_the_pipeline_takes_no_argument_for() -> None:
    with pytest.raises(ConfigError, match="FluxPipeline takes no batch=: its arguments are prompt, "):
        tune(FLUX.build(), ["a", "b", "c"], speedup=2, batch=4)


def test_a_quality_that_no_reuse_keeps_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no reuse keeps 99\.9 on 90% of the samples"):
        tune(FLUX.build(), flux_calls(4, 3), quality=99.9)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"speedup": 100}, ConfigError),
        ({"quality": 500.0}, ConfigError),
        ({"speedup": 2, "strenght": 1}, TypeError),
    ],
)
def test_after_an_error_the_pipeline_has_the_cache_that_it_had(
    options: dict[str, Any], error: type[Exception]
) -> None:
    pipe = accelerate(FLUX.build(), "even", speedup=2)
    before = FLUX.render(pipe, 0, STEPS)
    last = report(pipe).summary()
    with pytest.raises(error):
        tune(pipe, flux_calls(STEPS, 3), **options)
    assert report(pipe).summary() == last
    assert torch.equal(FLUX.render(pipe, 0, STEPS), before)
    assert report(pipe).summary() == last


def test_a_folder_of_another_pipeline_is_refused(tmp_path: Path) -> None:
    tune(FLUX.build(), flux_calls(4, 3), speedup=2, folder=tmp_path)
    other = FLUX.build()
    with torch.no_grad():
        for parameter in other.transformer.parameters():
            parameter.mul_(1.5)
    with pytest.raises(ScheduleError, match="another networks: choose another folder"):
        tune(other, flux_calls(4, 3), speedup=2, folder=tmp_path)


def test_another_aim_in_the_same_folder_renders_only_what_is_new_and_says_what_it_replaces(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pipe, calls = FLUX.build(), flux_calls(6, 3)
    tune(pipe, calls, speedup=2, folder=tmp_path)
    entries = len(list((tmp_path / "journal").glob("*.safetensors")))
    tune(pipe, calls, speedup=2, folder=tmp_path)
    assert len(list((tmp_path / "journal").glob("*.safetensors"))) == entries
    assert "tuned for" not in caplog.text
    tune(pipe, calls, speedup=3, folder=tmp_path)
    assert len(list((tmp_path / "journal").glob("*.safetensors"))) > entries
    assert "tuned for speedup=2, engine=trajectory; it holds what was tuned for speedup=3" in caplog.text


def test_ctrl_c_keeps_the_best_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged = Tuner.judge

    def interrupted(self: Tuner, config: Any) -> Any:
        if len(self._known) == 3:
            raise KeyboardInterrupt
        return judged(self, config)

    monkeypatch.setattr(Tuner, "judge", interrupted)
    schedule = tune(FLUX.build(), flux_calls(6, 3), speedup=2, folder=tmp_path)
    assert schedule.measured["stopped"] == "interrupted"
    assert "verify" not in schedule.measured
    assert Schedule.from_pretrained(tmp_path).table == schedule.table


def test_when_the_time_is_over_the_best_so_far_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = Journal.check_time
    asked = 0

    def after_two(self: Journal) -> None:
        nonlocal asked
        asked += 1
        if asked > 2 and self._end is not None:
            self._end = 0.0
        spent(self)

    monkeypatch.setattr(Journal, "check_time", after_two)
    schedule = tune(FLUX.build(), flux_calls(6, 3), speedup=2, minutes=60)
    assert schedule.measured["stopped"] == "time"
    assert schedule.measured["verify"]["samples"] == 1


def test_a_front_has_a_folder_for_each_share_and_loads_itself(tmp_path: Path) -> None:
    found = tune(FLUX.build(), flux_calls(8, 3), front=True, folder=tmp_path)
    assert [one.measured["compute_fraction"] for one in found] == [0.25, 0.25, 0.375, 0.5, 0.625]
    assert Schedule.from_pretrained(tmp_path).measured["compute_fraction"] == 0.5
    assert len(list(tmp_path.glob("front-*/cache_schedule.json"))) == 5


@pytest.mark.parametrize("stop", ["time", "interrupted before a proposal", "interrupted after one"])
def test_a_front_that_is_stopped_has_what_was_finished(
    stop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    judged, checked = Tuner.judge, Journal.check_time

    def spent(self: Journal) -> None:
        if self._end is not None and len(found) >= 2:
            self._end = 0.0
        checked(self)

    def interrupted(self: Tuner, config: Any) -> Any:
        if len(found) == 2 and (self.best is not None) is stop.endswith("after one"):
            raise KeyboardInterrupt
        return judged(self, config)

    found = list[str]()
    write = tune_module.write
    monkeypatch.setattr(
        tune_module, "write", lambda one, folder: (found.append(folder.name), write(one, folder))
    )
    if stop == "time":
        monkeypatch.setattr(Journal, "check_time", spent)
    else:
        monkeypatch.setattr(Tuner, "judge", interrupted)
    front = tune(FLUX.build(), flux_calls(8, 3), front=True, folder=tmp_path, minutes=60)
    stopped = [one.measured.get("stopped") for one in front]
    assert stopped == ([None, None, "interrupted"] if stop.endswith("after one") else [None, None])
    assert f"ends after {len(front)} of 5" in caplog.text


def test_proposals_whose_pictures_are_no_numbers_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = FullRuns._measured

    def broken(self: FullRuns, pictures: torch.Tensor, call: int) -> dict[str, torch.Tensor]:
        attachment = diffusion_attachment_of(key_of(self.pipe))
        if attachment is not None and isinstance(attachment.config, EvenConfig):
            pictures = pictures * float("nan")
        return measured(self, pictures, call)

    monkeypatch.setattr(FullRuns, "_measured", broken)
    one = tuner(6, 3)
    best = one.for_compute(0.5)
    assert best.is_finite
    assert not all(judged.is_finite for judged in one._known.values())


def test_where_no_pictures_are_numbers_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = FullRuns._measured
    monkeypatch.setattr(
        FullRuns, "_measured", lambda self, pictures, call: measured(self, pictures * float("nan"), call)
    )
    with pytest.raises(ConfigError, match="no proposal gave pictures of finite numbers"):
        tuner(6, 3).for_compute(0.5)
    parts = three_parts(flux_calls(12, 3), 1)
    deciding = Tuner(Task(pipe=FLUX.build(), calls=parts.fit, ticks=12), parts, "teacache")
    with pytest.raises(ConfigError, match="no proposal gave pictures of finite numbers"):
        deciding.for_compute(0.7)


def test_samples_to_verify_on_without_pictures_are_counted_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    measures, calls = FullRuns.measures, flux_calls(6, 3)
    verified = three_parts(calls, 1).verify

    def lost(self: FullRuns, config: Any) -> torch.Tensor:
        values = measures(self, config)
        return values - torch.inf if self.calls == verified else values

    monkeypatch.setattr(FullRuns, "measures", lost)
    tune(FLUX.build(), calls, speedup=2, folder=tmp_path)
    assert "1 of 1 samples to verify on have no pictures of finite numbers" in caplog.text
    assert "Infinity" not in (tmp_path / TUNE).read_text()
    assert "median -inf" in show(str(tmp_path))


def test_a_result_that_cannot_be_written_leaves_the_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = tune(FLUX.build(), flux_calls(6, 3), speedup=2, folder=tmp_path)

    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(schedule_file, "save_file", full)
    with pytest.raises(OSError, match="no space"):
        tune(FLUX.build(), flux_calls(6, 3), speedup=3, folder=tmp_path)
    assert Schedule.from_pretrained(tmp_path) == older


def test_a_pipeline_whose_own_pictures_are_no_numbers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_runs, "pictures_of", lambda result: torch.full((1, 3, 4, 4), float("nan")))
    with pytest.raises(ConfigError, match="own pictures are not finite"):
        tune(FLUX.build(), flux_calls(6, 3), speedup=2)


@pytest.mark.parametrize("count", [2, 3])
def test_prompts_that_are_too_few_to_verify_on_are_told(count: int, caplog: pytest.LogCaptureFixture) -> None:
    tune(FLUX.build(), flux_calls(6, count), speedup=2)
    assert ("with fewer than three prompts nothing is verified" in caplog.text) is (count < 3)


def test_a_file_of_somebody_else_is_replaced_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / TUNE).write_text("[]")
    schedule = tune(FLUX.build(), flux_calls(6, 3), speedup=2, folder=tmp_path)
    assert "producer: missing. It is replaced." in caplog.text
    assert Schedule.from_pretrained(tmp_path).table == schedule.table


def test_engines_refuse_sites_that_they_do_not_work_on() -> None:
    for name, sites, sentence in (
        ("trajectory", "block", "chooses its sites itself"),
        ("bac", "model", "works inside the denoiser"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            ENGINES[name](Task(pipe=None, calls=[], ticks=4, sites=sites))


def test_without_a_journal_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with journaling(Journal()):
        tuner(4, 3).for_compute(0.5)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("output_type", ["latent", "pt"])
def test_dB_of_latents_are_not_taken_for_those_of_pictures(
    output_type: str, caplog: pytest.LogCaptureFixture
) -> None:
    prompts = [{**call, "output_type": output_type} for call in flux_calls(4, 1)]
    tune(FLUX.build(), prompts, speedup=1)
    assert ("not dB of pictures; pass 'pt'" in caplog.text) == (output_type == "latent")


def test_a_config_that_was_tuned_is_for_its_own_model(tmp_path: Path) -> None:
    tune(FLUX.build(), flux_calls(STEPS, 2), speedup=1.3, engine="magcache", folder=tmp_path)
    accelerate(FLUX.build(), tmp_path)
    accelerate(FLUX.build(), tmp_path, threshold=0.1)
    accelerate(FLUX.build().transformer, tmp_path)
    other, wan = FLUX.build(), CASES["WanPipeline"].build()
    other.transformer.register_to_config(num_layers=77)
    for pipe, sentence in (
        (other, "the config's transformer is of another configuration: record one on this model"),
        (wan, "the config's transformer is of FluxTransformer2DModel, not WanTransformer3DModel"),
        (
            CASES["StableDiffusionPipeline"].build(),
            "the config's unet is of FluxTransformer2DModel, not UNet2DConditionModel",
        ),
    ):
        before = type(pipe)
        with pytest.raises(ScheduleError, match=sentence):
            accelerate(pipe, tmp_path)
        assert type(pipe) is before
