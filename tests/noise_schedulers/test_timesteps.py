"""Where a time lies in a noise scheduler's list of timesteps."""

from types import SimpleNamespace

import torch

from diffcache.noise_schedulers.timesteps import index_in_list

T = torch.tensor


def test_a_timestep_is_found_by_where_it_lies_and_not_by_its_value() -> None:
    noise_scheduler = SimpleNamespace(timesteps=T([9.0, 4.0, 4.0]))
    assert index_in_list([torch.randn(3), noise_scheduler.timesteps[2]], noise_scheduler) == 2
    assert index_in_list([noise_scheduler.timesteps[1].expand(5)], noise_scheduler) == 1
    assert index_in_list([T(4.0), noise_scheduler.timesteps], noise_scheduler) is None
