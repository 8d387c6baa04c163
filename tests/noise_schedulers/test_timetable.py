"""Timetables: how far each tick lies from pure noise, wherever the run begins."""

import pytest

from diffcache.noise_schedulers.levels import Level
from diffcache.noise_schedulers.timetable import Timetable

ANGLES = (1.5, 1.2, 0.6, 0.1)


def turned(**options: int) -> list[float | None]:
    levels = [Level(angle=angle) for angle in ANGLES]
    timetable = Timetable(len(ANGLES) - options.get("first", 0), levels, **options)  # type: ignore[arg-type]
    return [moment.turned for moment in timetable.moments]


def test_a_run_turns_away_from_the_noise_with_which_its_noise_scheduler_begins() -> None:
    assert turned() == pytest.approx([0.0, 0.3, 0.9, 1.4])


def test_image_to_image_begins_some_way_from_pure_noise() -> None:
    assert turned(first=2) == pytest.approx([0.9, 1.4])


def test_nothing_is_said_where_angles_are_unknown() -> None:
    assert [moment.turned for moment in Timetable(2, [Level(), Level()]).moments] == [None, None]
