"""What a run is told of its denoisers."""

from __future__ import annotations

import pytest
from support.toys import ToyDenoiser

from diffcache.engine.served import served_by_identity
from diffcache.host.network_facts import facts_of_networks


@pytest.mark.parametrize(("second", "experts"), [("transformer_2", 2), ("unconditional_transformer", 1)])
def test_denoisers_that_take_turns_are_counted(second: str, experts: int) -> None:
    """The second one of Wan 2.2 takes over; that of Ideogram 4 runs beside the first at every step."""
    denoisers = {"transformer": ToyDenoiser(), second: ToyDenoiser()}
    served = served_by_identity(denoisers, facts_of_networks(denoisers))
    assert {one.experts for one in served.values()} == {experts}
