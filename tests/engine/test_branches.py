"""Guidance passes are told apart by name, by conditioning, by order; never by parity."""

import weakref
from collections import Counter
from typing import Any

import pytest
import torch
from zoo.pipelines import CASES

from diffcache import accelerate, report
from diffcache.engine.branches import Branches
from diffcache.host.call import Argument
from diffcache.noise_schedulers.timetable import Timetable
from diffcache.prediction.predictors import Hold
from diffcache.store.formats import Format
from diffcache.store.placement import Feature
from diffcache.store.rings import StoreSetup

COND, UNCOND = torch.randn(1, 4, 8), torch.randn(1, 4, 8)


class Loop:
    """Feeds calls into Branches and marks each found branch as having stored something."""

    def __init__(self) -> None:
        self.branches = Branches(StoreSetup(Hold(), Format(), Timetable()))
        self.tick = -1

    def __call__(
        self, *calls: Any, context: str | None = None, hand_written: bool = False
    ) -> list[tuple[str, bool]]:
        """One tick; returns for each call its branch and whether that had something stored."""
        self.tick += 1
        self.branches.begin_tick(self.tick)
        found = []
        for conditioning in calls:
            given = conditioning if isinstance(conditioning, dict) else {"text": conditioning}
            arguments = {path: Argument(value) for path, value in given.items()}
            branch = self.branches.identify(arguments, context, hand_written=hand_written)
            found.append((branch.name, branch.stored))
            branch.store("model").rings[0].appendleft(Feature(self.tick, ()))
        return found


def test_two_passes_are_told_apart_by_their_tensors_whatever_their_order() -> None:
    loop = Loop()
    assert loop(COND, UNCOND) == [("0", False), ("1", False)]
    assert loop(UNCOND, COND) == [("1", True), ("0", True)]
    assert loop(UNCOND) == [("1", True)]
    assert loop(COND) == [("0", True)]


def test_a_pass_that_begins_later_is_a_new_branch_even_if_it_comes_first() -> None:
    loop = Loop()
    loop(COND)
    assert loop(UNCOND, COND) == [("1", False), ("0", True)]


def test_conditioning_made_anew_at_every_tick_is_told_apart_by_content() -> None:
    loop = Loop()
    loop(COND.clone(), UNCOND.clone())
    for _ in range(4):
        assert loop(COND.clone(), UNCOND.clone()) == [("0", True), ("1", True)]
    assert loop(UNCOND.clone()) == [("1", True)]


def test_an_input_that_changes_at_every_tick_stops_mattering() -> None:
    loop = Loop()
    for _ in range(4):
        loop({"text": COND, "control": torch.randn(1, 4, 8)})
    assert loop({"text": COND, "control": torch.randn(1, 4, 8)}) == [(loop.branches.known[-1].name, True)]
    assert not any(
        "control" in branch.conditioning for branch in loop.branches.known if branch.tick == loop.tick
    )


def test_an_input_that_begins_to_change_at_every_tick_stops_mattering_soon() -> None:
    """A ControlNet's residuals are zeros before its part of the run."""
    loop = Loop()
    for _ in range(4):
        loop({"text": COND, "control": torch.zeros(1, 4, 8)})
    found = [loop({"text": COND, "control": torch.randn(1, 4, 8)}) for _ in range(6)]
    assert [stored for ((_, stored),) in found] == [False, *[True] * 5]


def test_an_input_that_changes_now_and_then_goes_on_to_tell_passes_apart() -> None:
    loop, prompts = Loop(), [torch.randn(1, 4, 8) for _ in range(4)]
    for prompt in prompts:
        assert loop(prompt)[0][1] is False
        for _ in range(3):
            assert loop(prompt)[0][1] is True


def test_many_inputs_that_change_are_compared_with_few_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, reads = Loop(), Counter[str]()

    def counting(owner: Any, name: str) -> None:
        read = getattr(owner, name)

        def counted(*args: Any) -> Any:
            reads[name] += 1
            return read(*args)

        monkeypatch.setattr(owner, name, counted)

    counting(torch, "equal")
    counting(torch.Tensor, "tolist")
    for _ in range(10):
        loop({"text": COND, **{f"residuals.{i}": torch.randn(1, 4, 8) for i in range(12)}})
    assert reads.total() <= 6


def test_another_prompt_under_the_same_name_empties_the_branch() -> None:
    loop = Loop()
    loop(COND, context="cond")
    assert loop(COND, context="cond") == [("cond", True)]
    assert loop(UNCOND, context="cond") == [("cond", False)]


def test_names_rule_where_they_are_given() -> None:
    loop = Loop()
    loop.branches.begin_tick(0)
    names = [
        loop.branches.identify({"text": Argument(COND)}, name, hand_written=False).name
        for name in ("cond", "uncond")
    ]
    assert names == ["cond", "uncond"]


def test_values_tell_passes_apart_too() -> None:
    loop = Loop()
    plain, skipping = {"text": COND, "skip": 0}, {"text": COND, "skip": 7}
    loop(plain, skipping)
    assert loop(skipping) == [("1", True)]


def test_a_branch_that_stays_away_is_forgotten() -> None:
    loop = Loop()
    loop(COND, UNCOND)
    for _ in range(4):
        loop(COND)
    assert loop(UNCOND) == [("1", False)]
    assert len(loop.branches.known) == 2


def test_order_decides_in_hand_written_loops() -> None:
    loop = Loop()
    loop({}, {}, hand_written=True)
    assert loop({}, {}, hand_written=True) == [("0", True), ("1", True)]
    assert loop({}, hand_written=True) == [("0", True)]


def test_in_hand_written_loops_tensors_that_stay_tell_passes_apart() -> None:
    loop = Loop()
    assert loop(UNCOND, COND, hand_written=True) == [("0", False), ("1", False)]
    assert loop(COND, UNCOND, hand_written=True) == [("1", True), ("0", True)]
    assert loop(UNCOND, COND, hand_written=True) == [("0", True), ("1", True)]


def test_in_hand_written_loops_a_pass_that_begins_later_reuses_nothing_of_the_other() -> None:
    loop = Loop()
    loop(COND, hand_written=True)
    loop(COND, hand_written=True)
    assert loop(UNCOND, COND, hand_written=True) == [("0", False), ("1", False)]
    assert loop(UNCOND, COND, hand_written=True) == [("0", True), ("1", True)]
    assert loop(COND, hand_written=True) == [("1", True)]


def test_in_hand_written_loops_what_is_shared_or_made_anew_tells_nothing() -> None:
    ids, loop = torch.zeros(4, 3), Loop()
    for _ in range(4):
        found = loop(
            {"text": COND.clone(), "ids": ids}, {"text": UNCOND.clone(), "ids": ids}, hand_written=True
        )
        assert [name for name, _ in found] == ["0", "1"]


def test_in_hand_written_loops_another_prompt_empties_the_branch() -> None:
    loop = Loop()
    loop(COND, hand_written=True)
    loop(COND, hand_written=True)
    assert loop(UNCOND, hand_written=True) == [("0", False)]


def test_in_hand_written_loops_plain_values_tell_passes_apart() -> None:
    loop = Loop()
    first, second = {"text": COND, "drop": False}, {"text": COND, "drop": True}
    loop(first, second, hand_written=True)
    assert loop(second, first, hand_written=True) == [("1", True), ("0", True)]
    assert loop(first, hand_written=True) == [("0", True)]


def test_in_hand_written_loops_other_prompts_empty_all_passes_each_time() -> None:
    loop, found = Loop(), []
    for tick in range(16):
        if tick % 5 == 0:
            cond, uncond = torch.randn(1, 4, 8), torch.randn(1, 4, 8)
        found += loop(cond, uncond, hand_written=True)
    assert [stored for _, stored in found[::2]] == [tick % 5 > 0 for tick in range(16)]
    assert found[1::2] == [("1", stored) for _, stored in found[::2]]


def test_in_hand_written_loops_what_changes_often_says_nothing_in_the_end() -> None:
    loop, found = Loop(), []
    for tick in range(9):
        if tick % 3 == 0:
            seen = torch.randn(1, 4, 8)
        found += loop(seen, hand_written=True)
    assert found == [("0", tick not in (0, 3)) for tick in range(9)]


def test_in_hand_written_loops_no_tensor_is_kept_alive() -> None:
    loop = Loop()
    given = torch.randn(1, 4, 8)
    alive = weakref.ref(given)
    loop(given, hand_written=True)
    del given
    assert alive() is None


def test_the_residuals_of_a_control_network_make_no_second_pass() -> None:
    case = CASES["StableDiffusionControlNetPipeline"]
    pipe = accelerate(case.build(), "even", speedup=2)
    case.render(pipe, 0, 20)
    assert report(pipe).branches == ["0"]
    assert len(report(pipe).computed_ticks) == 10
