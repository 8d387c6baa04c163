"""What computed ticks tell a cache scheduler of the errors of reusing them."""

import pytest
import torch
from support.flows import Plain

from diffcache import accelerate, denoising_run, report
from diffcache.engine.comparison import squares_of
from diffcache.engine.prediction_watch import COMPARED
from diffcache.recipes.trajectory import TrajectoryConfig


def test_squares_are_means_over_elements_and_then_over_streams() -> None:
    computed = [torch.full((2, 4), 2.0), torch.full((100,), 4.0)]
    near, far = ([stream + by for stream in computed] for by in (0.5, -3.0))
    size, first, second, _ = squares_of([near, far], computed, torch.zeros(2, 4)).tolist()
    assert size == pytest.approx((4 + 16) / 2)
    assert (first, second) == pytest.approx((0.25, 9.0))


def test_squares_of_half_precision_do_not_overflow() -> None:
    computed = [torch.full((8,), 300.0, dtype=torch.float16)]
    size, error, _ = squares_of([[computed[0] / 2]], computed, computed[0]).tolist()
    assert (size, error) == pytest.approx((90_000, 22_500))


def test_the_variance_is_that_within_each_sample() -> None:
    sample = torch.stack([10 + 2 * torch.randn(3, 64, 64), 4 * torch.randn(3, 64, 64)])
    *_, variance = squares_of([[sample]], [sample], sample.half()).tolist()
    assert variance == pytest.approx((4 + 16) / 2, rel=0.05)


class WatchedTrajectory(TrajectoryConfig):
    """A method of somebody's own that compares predictions, and has a watch as well."""

    @property
    def watch_bound(self) -> float:
        return 1.0


def test_a_watch_and_a_scheduler_that_compares_each_get_their_errors() -> None:
    net, latents = accelerate(Plain().eval(), WatchedTrajectory(speedup=2)), torch.randn(1, 3, 8)
    with torch.no_grad(), denoising_run(net, 12) as run:
        for tick in range(12):
            run.begin_step(tick)
            latents = latents - 0.05 * net(latents, torch.tensor([12.0 - tick]))
    compared = [errors for record in report(net).records for *_, errors in record.errors]
    assert 3 < len(report(net).computed_ticks) < 12
    assert compared
    assert all(set(errors) == {kind.value for kind in COMPARED} for errors in compared)
