"""Compares methods on one pipeline with its full run, beside the plain pipeline with fewer steps."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from diffcache.config import CacheConfig
from diffcache.evals.harness.fewer_steps import noise_schedulers, render_with_steps
from diffcache.evals.harness.markdown import markdown_table
from diffcache.evals.harness.quality import REFERENCE_STEPS, Distance, Quality, References
from diffcache.evals.harness.rendering import render

SHARES = (0.54, 0.36)
"""Of the full run's compute, at which methods are compared side by side."""
TOLERANCE = 0.08
"""How far from a share a setting may be."""


@dataclass(frozen=True, kw_only=True)
class Row(Quality):
    """One line of a comparison.

    Attributes:
        name: of the method with its setting, or of the plain pipeline with fewer steps.
        ticks: model evaluations computed, of `total`.
        compute: share of the full run's work.
    """

    name: str
    ticks: int
    total: int
    compute: float


class Comparison:
    """Renders a pipeline call in full, and compares other ways to run it with that.

    Args:
        pipe: a plain pipeline.
        call: its keyword arguments, several samples with a generator each; `num_inference_steps` is the full run's.
        referenced: whether to compare with pictures of the same call with 1000 steps, too.
        distance: of a row's pictures to real ones (`kid_to_real`); None: not measured.
    """

    def __init__(
        self,
        pipe: Any,
        call: dict[str, Any],
        *,
        referenced: bool = True,
        distance: Distance | None = None,
    ) -> None:
        self.pipe = pipe
        self.call = call
        self.steps: int = call["num_inference_steps"]
        reference = render_with_steps(pipe, call, REFERENCE_STEPS).pictures if referenced else None
        self.references = References(render(pipe, call).pictures, reference, distance)

    def full_row(self) -> Row:
        return self._row("full run", self.references.full, self.steps, 1.0)

    def method(self, name: str, config: CacheConfig) -> Row:
        rendered = render(self.pipe, self.call, config)
        found = rendered.run_report
        return self._row(name, rendered.pictures, len(found.computed_ticks), found.compute_fraction)

    def fewer_steps(self, steps: int) -> list[Row]:
        """The plain pipeline with so many steps, a row for each noise scheduler."""
        return [
            self._row(
                f"{steps} steps, {name}",
                render_with_steps(self.pipe, self.call, steps, noise_scheduler).pictures,
                steps,
                steps / self.steps,
            )
            for name, noise_scheduler in noise_schedulers(self.pipe).items()
        ]

    def _row(self, name: str, pictures: Tensor, ticks: int, compute: float) -> Row:
        quality = asdict(self.references.quality(pictures))
        return Row(name=name, ticks=ticks, total=self.steps, compute=round(compute, 4), **quality)


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table; without the columns that no row has measured."""
    head = ["run", "ticks", "compute", "PSNR to full", "SSIM to full"]
    lines = [
        [r.name, f"{r.ticks}/{r.total}", f"{r.compute:.0%}", f"{r.psnr_full:.1f}", f"{r.ssim_full:.4f}"]
        for r in rows
    ]
    optional = {
        "PSNR to 1000 steps": [None if r.psnr_reference is None else f"{r.psnr_reference:.1f}" for r in rows],
        "KID": [None if r.kid is None else f"{r.kid:.4f}" for r in rows],
    }
    for name, column in optional.items():
        if any(column):
            head.append(name)
            lines = [[*line, cell or "-"] for line, cell in zip(lines, column, strict=True)]
    return markdown_table(head, lines)


def nearest(rows: Sequence[Row], share: float) -> dict[str, Row]:
    """The row of each method nearest to a share of the compute, and of fewer steps under each noise scheduler ("N steps, own").

    Methods without a row within `TOLERANCE` of the share are left out.
    """
    found: dict[str, Row] = {}
    for row in rows:
        distance = abs(row.compute - share)
        stem, _, setting = row.name.rpartition(" ")
        name = f"N steps, {row.name.split(', ')[1]}" if " steps, " in row.name else stem or setting
        if distance <= TOLERANCE and (name not in found or distance < abs(found[name].compute - share)):
            found[name] = row
    return found


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [asdict(row) for row in rows]
