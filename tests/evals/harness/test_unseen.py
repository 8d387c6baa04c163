"""What is fitted refuses to be judged on its own."""

import json
from pathlib import Path

import pytest

from diffcache.evals.errors import EvaluationError
from diffcache.evals.experiments.trajectory_prior import FITTED_ON
from diffcache.evals.harness.facts import run_facts
from diffcache.evals.harness.results import read_result, result_path
from diffcache.evals.harness.unseen import judged_on, unseen_prior
from diffcache.evals.testbeds import splits, zoo
from diffcache.recipes import trajectory
from diffcache.recipes.trajectory import TrajectoryConfig
from diffcache.trajectory.prior import SHIPPED, Prior, universal


@pytest.mark.parametrize("testbed", zoo.ALL)
def test_the_prior_that_judges_a_testbed_has_not_seen_it(testbed: str) -> None:
    stored = result_path("trajectory_prior", testbed)
    prior = unseen_prior(testbed)
    if stored.exists():
        assert testbed not in read_result(stored)["fitted_on"]
        assert prior == Prior.from_dict(read_result(stored)) != universal()
    with judged_on(testbed):
        assert TrajectoryConfig().prior == prior
        assert trajectory.universal() == prior
    assert TrajectoryConfig().prior == universal()


def test_a_testbed_that_had_part_in_every_fit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tmp_path / "prior.json"
    shipped.write_text(json.dumps({"fitted_on": ["sd3", "turbo"], "kernel": {}, "pace": {}, "response": {}}))
    with pytest.raises(EvaluationError, match="was fitted on turbo: fit it without"):
        unseen_prior("turbo", shipped)
    with pytest.raises(EvaluationError, match="a thing was fitted on sd3: judge it on another testbed"):
        splits.refuse_seen("sd3", ["sd", "sd3"], "a thing")
    splits.refuse_seen("sd3", ["sd"], "a thing")


def test_plans_of_the_other_prior_are_not_taken() -> None:
    run = run_facts(zoo.load("dit"), zoo.sample_call("dit", 0, 20, 1))
    before = TrajectoryConfig().plan(run, 3)
    with judged_on("dit"):
        unseen = TrajectoryConfig().plan(run, 3)
    assert unseen.expected != before.expected
    assert TrajectoryConfig().plan(run, 3) == before


def test_no_two_uses_share_a_sample_but_choosing_goes_on_from_trying() -> None:
    samples = {
        use: {(part.prompts, part.seed + i) for i in part.samples or range(999)}
        for use, part in splits.PARTS.items()
    }
    assert samples.pop("try") < samples["choose"]
    everything = [sample for some in samples.values() for sample in some]
    assert len(everything) == len({*everything})


def test_each_testbed_is_fitted_on_or_judged_on() -> None:
    assert sorted([*splits.FITTING, *splits.JUDGING]) == sorted({*zoo.ALL})
    assert {*splits.UNSEEN} < {*splits.JUDGING}


def test_the_prior_that_is_shipped_has_not_seen_an_unseen_testbed() -> None:
    fitted_on = {*json.loads(SHIPPED.read_text())["fitted_on"]}
    assert fitted_on == {*FITTED_ON}
    assert not fitted_on & {*splits.UNSEEN}
