"""Compares methods on one pipeline at a given compute, with the plain pipeline at fewer steps as the ruler."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from diffcache.config import CacheConfig
from diffcache.evals.harness.rendering import noise_scheduler, render
from diffcache.evals.harness.rulers import rulers
from diffcache.evals.metrics.fidelity import psnr, ssim

REFERENCE_STEPS = 1000

SHARES = (0.54, 0.36)
"""Of the full run's compute, at which methods are held side by side."""
TOLERANCE = 0.08


@dataclass(frozen=True)
class Row:
    """One line of a comparison; medians over the samples.

    Attributes:
        name: the method, or the ruler.
        ticks: model evaluations computed, of `total`.
        compute: share of the full run's work.
        psnr_full, ssim_full: against the full run.
        psnr_reference: against the reference of 1000 steps; None where it was not rendered.
        kid: distance of all samples to real pictures; None where it was not asked for.
    """

    name: str
    ticks: int
    total: int
    compute: float
    psnr_full: float
    ssim_full: float
    psnr_reference: float | None
    kid: float | None = None


class Comparison:
    """Holds a pipeline call's full run and its reference, and measures others against them.

    Args:
        pipe: a plain pipeline.
        call: its keyword arguments, several samples with a generator each; `num_inference_steps` is the full run's.
        reference: pictures of the reference run, where they are known already.
        referenced: whether to measure against the reference run at all.
        distance: of all pictures of a row to real ones (`kid_to_real`); None: not measured.
    """

    def __init__(
        self,
        pipe: Any,
        call: dict[str, Any],
        reference: Tensor | None = None,
        *,
        referenced: bool = True,
        distance: Callable[[Tensor], float] | None = None,
    ) -> None:
        self.pipe = pipe
        self.call = call
        self.distance = distance
        self.steps: int = call["num_inference_steps"]
        self.full = render(pipe, call).pictures
        self.reference = self.fewer(REFERENCE_STEPS) if reference is None and referenced else reference

    def fewer(self, steps: int, replacement: Any = None) -> Tensor:
        """The plain pipeline with another number of steps, and perhaps another noise scheduler."""
        with noise_scheduler(self.pipe, replacement):
            return render(self.pipe, {**self.call, "num_inference_steps": steps}).pictures

    def full_row(self) -> Row:
        return self._row("full run", self.full, self.steps, 1.0)

    def method(self, name: str, config: CacheConfig) -> Row:
        rendered = render(self.pipe, self.call, config)
        assert rendered.report is not None
        found = rendered.report
        return self._row(name, rendered.pictures, len(found.computed_ticks), found.compute_fraction)

    def fewer_steps(self, steps: int) -> list[Row]:
        """One row for each ruler at `steps` steps."""
        return [
            self._row(f"{steps} steps, {name}", self.fewer(steps, replacement), steps, steps / self.steps)
            for name, replacement in rulers(self.pipe).items()
        ]

    def _row(self, name: str, pictures: Tensor, ticks: int, compute: float) -> Row:
        def median(values: Tensor) -> float:
            return round(float(values.median()), 3)

        return Row(
            name,
            ticks,
            self.steps,
            round(compute, 4),
            median(psnr(pictures, self.full)),
            median(ssim(pictures, self.full)),
            None if self.reference is None else median(psnr(pictures, self.reference)),
            None if self.distance is None else round(self.distance(pictures), 5),
        )


def table(rows: list[Row]) -> str:
    """The rows as a Markdown table; without the reference and KID where they were not measured."""
    head = ["run", "ticks", "compute", "PSNR to full", "SSIM to full"]
    more = {
        "PSNR to 1000 steps": [None if r.psnr_reference is None else f"{r.psnr_reference:.1f}" for r in rows],
        "KID": [None if r.kid is None else f"{r.kid:.4f}" for r in rows],
    }
    lines = [
        [r.name, f"{r.ticks}/{r.total}", f"{r.compute:.0%}", f"{r.psnr_full:.1f}", f"{r.ssim_full:.4f}"]
        for r in rows
    ]
    for name, column in more.items():
        if any(column):
            head.append(name)
            lines = [[*line, cell or "-"] for line, cell in zip(lines, column, strict=True)]
    rule = "|---" * len(head) + "|"
    first, *rest = ["| " + " | ".join(line) + " |" for line in [head, *lines]]
    return "\n".join([first, rule, *rest])


def nearest(rows: list[Row], share: float) -> dict[str, Row]:
    """Of each method, and of each ruler ("N steps, own"), the row nearest to a share of the compute; none too far from it."""
    found: dict[str, Row] = {}
    for row in rows:
        distance = abs(row.compute - share)
        stem, _, setting = row.name.rpartition(" ")
        name = f"N steps, {row.name.split(', ')[1]}" if " steps, " in row.name else stem or setting
        if distance <= TOLERANCE and (name not in found or distance < abs(found[name].compute - share)):
            found[name] = row
    return found


def as_json(rows: list[Row]) -> list[dict[str, Any]]:
    return [asdict(row) for row in rows]
