"""Folders of samples: each sample is made once, whatever the number of processes, and interruptions cost a batch at most."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from diffcache.evals.errors import EvaluationError
from diffcache.evals.evaluation.sample_folder import ProcessShare, SampleFolder, check_manifest
from diffcache.evals.harness.rendering import Rendered


class Painter:
    """Renders pictures that tell their index, and remembers which it was asked for."""

    def __init__(self, dies_after: int | None = None) -> None:
        self.asked: list[int] = []
        self.dies_after = dies_after

    def __call__(self, indices: list[int]) -> Rendered:
        if self.dies_after is not None and len(self.asked) >= self.dies_after:
            raise KeyboardInterrupt
        self.asked += indices
        return Rendered(torch.stack([painted(i) for i in indices]), seconds=1.0, cpu_seconds=1.0)


def painted(index: int) -> Tensor:
    return torch.full((3, 4, 4), index / 255)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_sample_once_whatever_the_number_of_processes(world: int, tmp_path: Path) -> None:
    arm, painters = SampleFolder(tmp_path, 11, 2), [Painter() for _ in range(world)]
    for rank, painter in enumerate(painters):
        arm.generate(painter, ProcessShare(rank, world))
    assert sorted(i for painter in painters for i in painter.asked) == list(range(11))
    assert all(torch.equal(arm.sample(i), painted(i)) for i in range(11))
    assert [i for record in arm.records() for i in record.samples] == list(range(11))


def test_an_interrupted_generation_goes_on_where_it_stopped(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        SampleFolder(tmp_path, 10, 2).generate(Painter(dies_after=4), ProcessShare())
    with pytest.raises(EvaluationError, match="3 of 5 batches are not done"):
        SampleFolder(tmp_path, 10, 2).records()
    for rank in range(2):  # and with another number of processes
        painter = Painter()
        SampleFolder(tmp_path, 10, 2).generate(painter, ProcessShare(rank, 2))
        assert not set(painter.asked) & {0, 1, 2, 3}
    assert len(SampleFolder(tmp_path, 10, 2).records()) == 5
    assert SampleFolder(tmp_path, 10, 2).generate(Painter(), ProcessShare()) == 0


def test_a_sample_that_was_deleted_is_made_again(tmp_path: Path) -> None:
    arm = SampleFolder(tmp_path, 6, 2)
    arm.generate(Painter(), ProcessShare())
    (tmp_path / "samples" / "000003.png").unlink()
    with pytest.raises(EvaluationError, match=r"000003 is missing: run again"):
        arm.sample(3)
    with pytest.raises(EvaluationError, match="1 of 3 batches are not done"):
        arm.records()
    painter = Painter()
    assert arm.generate(painter, ProcessShare()) == 1
    assert painter.asked == [2, 3]
    assert torch.equal(arm.sample(3), painted(3))


def test_a_folder_holds_one_evaluation(tmp_path: Path) -> None:
    check_manifest(tmp_path / "a", {"steps": 50, "window": (1, 2)})
    check_manifest(tmp_path / "a", {"steps": 50, "window": (1, 2)})
    with pytest.raises(EvaluationError, match="steps = 50, not 30: choose another folder"):
        check_manifest(tmp_path / "a", {"steps": 30, "window": (1, 2)})
