"""The comparison of methods: every row has a name of its own, and rows that are measured again replace the stored ones."""

from dataclasses import asdict
from typing import Any, cast

from diffcache.config import CacheConfig
from diffcache.evals.experiments.methods import settings, with_rows_of
from diffcache.evals.harness.comparison import Comparison, Row


class Stub:
    """A comparison that renders nothing."""

    def method(self, name: str, config: CacheConfig) -> Row:
        return row(name, psnr=1.0)


def row(name: str, psnr: float) -> Row:
    return Row(name=name, ticks=1, total=2, compute=0.5, psnr_full=psnr, ssim_full=1.0, psnr_reference=None)


def test_every_setting_has_a_row_of_its_own() -> None:
    names = [name for name, _ in settings()]
    assert len(names) == len(set(names)) > 40


def test_rows_that_are_measured_again_replace_the_stored_ones() -> None:
    stored: dict[str, Any] = {
        "header": {"date": "old"},
        "rows": [asdict(row(name, psnr=9.0)) for name in ("full run", "fora 2", "pab 2")],
    }
    found = with_rows_of(stored, cast(Comparison, Stub()), ["fora 2"], {"date": "new"})
    assert {each["name"]: each["psnr_full"] for each in found["rows"]} == {
        "full run": 9.0, "fora 2": 1.0, "pab 2": 9.0,
    }  # fmt: skip
    assert found["rows"][0]["name"] == "full run"
    assert found["header"] == {"date": "old"}
    assert found["renewed"] == [{"names": ["fora 2"], "date": "new"}]
