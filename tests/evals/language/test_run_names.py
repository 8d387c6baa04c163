"""Names of runs whose speed is measured."""

from __future__ import annotations

import pytest

from diffcache.evals.harness.results import stored
from diffcache.evals.language.run_names import RunName


def test_a_caches_name_may_have_commas() -> None:
    run = RunName.of("dkv-decode, ahead, window, quota")
    assert run == ("dkv-decode, ahead", "window", "quota")
    assert str(run) == "dkv-decode, ahead, window, quota"
    assert run.plain == "plain, window, quota"


@pytest.mark.parametrize("name", ["batch_1", "gpu"])
def test_every_measured_run_has_a_plain_one_beside_it(name: str) -> None:
    found = stored("language_speed")[name]["tokens_per_second"].values()
    assert found
    assert all(rates and {RunName.of(run).plain for run in rates} <= rates.keys() for rates in found)
