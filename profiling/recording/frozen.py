"""A method's decisions in one call, written down as a schedule."""

from typing import Any

from diffcache.attach.attach import report_of
from diffcache.config import CacheConfig
from diffcache.profiling.recording.calling import Call, accelerated, calls_hash
from diffcache.profiling.recording.journal import Entry, journal, key_of
from diffcache.profiling.recording.loops import target_of
from diffcache.profiling.recording.pictures import rewound
from diffcache.schedulers.schedule import Schedule
from diffcache.schedulers.schedule_file import as_json


def frozen(pipe: Any, call: Call, config: CacheConfig) -> Schedule:
    """A method's decisions in one call, as a schedule. The pipeline is plain afterwards.

    Raises:
        ScheduleError: the run cannot be frozen; see `RunReport.to_schedule`.
    """

    def decided() -> Entry:
        with accelerated(pipe, config):
            pipe(**rewound(call))
            schedule: Schedule = report_of(target_of(pipe)).to_schedule()
            return Entry({}, as_json(schedule))

    key = key_of("frozen", config=config, call=calls_hash([call]))
    return Schedule.from_json(journal().entry(key, decided).facts, {})
