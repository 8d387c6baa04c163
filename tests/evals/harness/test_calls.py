"""Splits: what is searched on, confirmed on and held out share no sample, however they are dealt into calls."""

import pytest
import torch

from diffcache.evals.harness.calls import of_prompts, of_testbed
from diffcache.evals.harness.pipelines import Source
from diffcache.evals.testbeds import zoo
from diffcache.profiling.recording.calling import Call


def seeds(*calls: Call) -> list[int]:
    return [generator.initial_seed() for call in calls for generator in call["generator"]]


@pytest.mark.parametrize("batch", [None, 2])
def test_no_sample_lies_in_two_parts_and_batches_change_none(batch: int | None) -> None:
    _, split = of_testbed("sd", steps=3, samples=5, confirming=3, held_out=4, batch=batch)
    assert seeds(*split.searched) == [1000, 1001, 1002, 1003, 1004]
    assert seeds(*split.confirming) == [1005, 1006, 1007]
    assert seeds(split.held_out) == [0, 1, 2, 3]
    parts = [
        {prompt for call in calls for prompt in call["prompt"]}
        for calls in (split.searched, split.confirming, [split.held_out])
    ]
    assert [len(part) for part in parts] == [5, 3, 4]
    assert len(set.union(*parts)) == 12
    assert max(len(call["prompt"]) for call in split.searched) == (batch or 5)


def test_a_pipeline_of_classes_gets_its_prompts_as_classes() -> None:
    folder = str(zoo.FOLDER / "dit")
    pipe, split = of_prompts(folder, ["3", "1", "4", "5", "9", "2"], steps=2, confirming=1)
    calls = [*split.searched, *split.confirming, split.held_out]
    assert [call["class_labels"] for call in calls] == [[3, 1], [4], [5, 9, 2]]
    assert seeds(*calls) == [1000, 1001, 1002, 0, 1, 2]
    assert len(pipe(**split.held_out)[0]) == 3


def test_nothing_is_confirmed_unless_asked_for() -> None:
    _, split = of_testbed("dit", steps=3, samples=2, confirming=0, held_out=1)
    assert split.confirming == []
    assert len(split.searched) == 1


@pytest.mark.filterwarnings("error::FutureWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("by_path", [False, True], ids=["name", "folder"])
def test_weights_are_loaded_in_their_precision_and_without_a_warning(
    dtype: torch.dtype, by_path: bool
) -> None:
    name = str(zoo.FOLDER / "dit") if by_path else "dit"
    pipe = Source(name, dtype=str(dtype).removeprefix("torch.")).load()
    assert {part.dtype for part in (pipe.transformer, pipe.vae)} == {dtype}
