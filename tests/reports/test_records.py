"""What a run writes down, and when it is made into records."""

from concurrent.futures import ThreadPoolExecutor

from diffcache.reports.records import Done, RunRecord
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
