"""Times that are compared are measured in turns."""

from collections.abc import Callable

from diffcache.evals.harness.loop_time import after_each_step, ratio_in_turns


def test_two_times_are_measured_in_turns_and_the_median_ratio_counts() -> None:
    order: list[str] = []

    def timed(name: str, *seconds: float) -> Callable[[], float]:
        left = iter(seconds)

        def measure() -> float:
            order.append(name)
            return next(left)

        return measure

    assert ratio_in_turns(timed("first", 3, 8, 2), timed("second", 1, 4, 2), rounds=3) == 2
    assert order == ["first", "second"] * 3


def test_steps_are_seen_by_all_who_wait_for_them_and_the_noise_scheduler_is_plain_afterwards() -> None:
    class NoiseScheduler:
        def step(self, value: int) -> int:
            return value + 1

    seen: list[str] = []
    scheduler = NoiseScheduler()
    with after_each_step(scheduler, lambda: seen.append("outer")):
        with after_each_step(scheduler, lambda: seen.append("inner")):
            assert scheduler.step(1) == 2
        assert scheduler.step(2) == 3
    assert seen == ["outer", "inner", "outer"]
    assert "step" not in vars(scheduler)
