"""Outputs that are not finite: the report says so, and what is saved of it is JSON that every parser reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.toys import ToyDenoiser, by_embeds, toy_pipeline
from torch import Tensor

from diffcache import Schedule, accelerate, report
from diffcache.reports.run_report import NOT_FINITE, RunReport

METHODS: dict[str, dict[str, Any]] = {"trajectory": {"speedup": 2}, "uniform": {}}


class Failing(ToyDenoiser):
    """Returns NaN from its fifth call on."""

    calls = 0

    def forward(self, hidden_states: Tensor, timestep: Tensor, **options: Any) -> tuple[Tensor]:
        self.calls += 1
        (output,) = super().forward(hidden_states, timestep, **options)
        return (output if self.calls < 5 else output * torch.nan,)


def told(method: str) -> RunReport:
    pipe = accelerate(toy_pipeline(Failing()), method, **METHODS[method])
    pipe(by_embeds())
    found: RunReport = report(pipe)
    return found


def refuse(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")


@pytest.mark.parametrize("method", METHODS)
def test_the_report_says_that_outputs_were_not_finite(method: str) -> None:
    found = told(method)
    assert found.notes[0] == NOT_FINITE
    assert found.drift is None
    assert "nan%" not in found.summary()


@pytest.mark.parametrize("method", METHODS)
def test_what_is_saved_is_strict_json(method: str, tmp_path: Path) -> None:
    found = told(method)
    text = found.save(tmp_path / "report.json").read_text()
    errors = json.loads(text, parse_constant=refuse)["runs"][0]["errors"]
    assert None in errors[-1][2].values()
    found.to_schedule().save_pretrained(tmp_path)
    json.loads((tmp_path / "cache_schedule.json").read_text(), parse_constant=refuse)
    assert Schedule.from_pretrained(tmp_path).table == found.to_schedule().table
