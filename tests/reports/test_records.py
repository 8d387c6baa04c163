"""What a run writes down, and when it is made into records."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from diffcache import ConfigError
from diffcache.reports.records import Done, RunRecord
from diffcache.reports.run_report import RunReport
from diffcache.schedulers.schedule import Model
from diffcache.schedulers.steps import Decision, Step, Verdict


def noted(record: RunRecord, tick: int) -> None:
    record.add("net", 2, [Done(Step(tick, 9, "0"), [Verdict(Decision.COMPUTE)])])


def test_records_can_be_read_while_a_run_goes_on() -> None:
    record = RunRecord(parameters={"net": 10})
    noted(record, 0)
    before = record.calls
    assert [call.tick for call in before] == [0]
    noted(record, 1)
    assert [call.tick for call in record.calls] == [0, 1]
    assert [call.tick for call in before] == [0]


def test_a_call_weighs_what_the_denoiser_had_then() -> None:
    record = RunRecord(parameters={"net": 10})
    noted(record, 0)
    record.parameters["net"] = 1000
    assert [call.weight for call in record.calls] == [20]


def test_reading_changes_nothing() -> None:
    one, other = RunRecord(), RunRecord()
    noted(one, 0), noted(other, 0)
    told = repr(one)
    assert one.calls
    assert one == other
    assert repr(one) == told


def test_readers_in_several_threads_see_all_calls() -> None:
    with ThreadPoolExecutor(4) as pool:
        for _ in range(20):
            record = RunRecord()
            for tick in range(200):
                noted(record, tick)
            assert set(pool.map(lambda record: len(record.calls), [record] * 8)) == {200}


def test_a_report_is_saved_with_its_calls(tmp_path: Path) -> None:
    record = RunRecord(
        parameters={"net": 10}, models={"net": Model("Net", "0123")}, errors=[(2, 0, {"-": 0.1})]
    )
    noted(record, 0), noted(record, 1)
    path = RunReport("uniform", {"interval": 2}, [record]).save(tmp_path / "report.json")
    saved = json.loads(path.read_text())
    assert saved["method"] == "uniform"
    (run,) = saved["runs"]
    assert run["models"] == {"net": {"name": "Net", "config": "0123", "latents": []}}
    assert run["errors"] == [[2, 0, {"-": 0.1}]]
    assert [(call["tick"], call["mark"], call["weight"]) for call in run["calls"]] == [
        (0, "#", 20),
        (1, "#", 20),
    ]


@pytest.mark.parametrize("ending", [".svg", ".png", ".PNG"])
def test_a_report_is_drawn_by_its_paths_ending(ending: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    record = RunRecord(parameters={"net": 10})
    noted(record, 0)
    path = RunReport("uniform", {}, [record]).plot(tmp_path / "pictures" / f"run{ending}")
    assert path.stat().st_size > 0


@pytest.mark.parametrize("name", ["run.xyz", "run", "run."])
def test_a_path_that_names_no_picture_is_refused_before_anything_is_written(
    name: str, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(ConfigError, match=r"give a path that ends in \.png or \.svg"):
        RunReport("uniform", {}, []).plot(tmp_path / "pictures" / name)
    assert not (tmp_path / "pictures").exists()
