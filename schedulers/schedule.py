"""Schedule: a table of decisions, with the run that it is for and what was measured to make it."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffcache.schedulers.artifact import json_text, plain, upload
from diffcache.schedulers.errors import ScheduleError
from diffcache.schedulers.numbers_given import is_number
from diffcache.schedulers.schedule_file import as_json, load, made_of, save
from diffcache.schedulers.steps import Decision

ALL = "all"
"""Branch name in a schedule that decides the same for all guidance passes."""

NOT_CALLED = "."
"""Mark of a tick at which the site was not called."""

GUIDANCE_SCALE = "guidance_scale"
"""Key in `Schedule.predictor`: the scale of guidance of the recorded run. It is left out where that is unknown."""

GUIDANCE_OPTIONS = "guidance_options"
"""Key in `Schedule.predictor`: the options of the recorded call that say how it guides (see `Guidance.options`)."""

INFLUENCE = "influence"
"""Key in `Schedule.predictor`: how far each tick's velocity changed the result (see `RunFacts.on_result`)."""

EXPECTED_ERROR = "expected_error"
"""Key of the expected error in `Schedule.measured`."""

MARKS = {decision.value for decision in Decision if decision is not Decision.ROWS} | {NOT_CALLED}
"""The characters that a row of the table may have."""


def expected_error_in(measured: Mapping[str, Any]) -> float | None:
    """The expected error of what was measured; None where there is none that is a number."""
    expected = measured.get(EXPECTED_ERROR)
    return float(expected) if is_number(expected) and expected >= 0 else None


@dataclass(frozen=True)
class Model:
    """A denoiser that a schedule was made for.

    Attributes:
        name: its class.
        config: hash of its configuration.
        latents: shapes of its latents, without the batch dimension.
    """

    name: str
    config: str
    latents: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Schedule:
    """An immutable table of decisions [tick, branch or all, site] that can be saved, shared and replayed.

    Attributes:
        models: the denoisers that it was made for, by name ("transformer").
        table: a row for each site and branch, with one character per tick: "#" compute, "-" predict, "/" straight line,
            "=" hold, "." not called.
        noise_scheduler: its class name; None for a hand-written loop.
        sigmas: noise level of each tick; None where unknown.
        predictor: the predictor's name and parameters.
        corrections: coefficients by name. They are only used if `fitted_with` is the schedule's own `fingerprint`.
        fitted_with: fingerprint of the schedule that the corrections were fitted with.
        quantization: how the weights of each quantised denoiser were quantised when the schedule was made.
        producer: the method that made it, the method's options, and a hash of the prompts.
        measured: cost and fidelity when it was made.
    """

    models: Mapping[str, Model]
    table: Mapping[str, Mapping[str, str]]
    noise_scheduler: str | None = None
    sigmas: tuple[float, ...] | None = None
    predictor: Mapping[str, Any] = field(default_factory=lambda: {"name": "hold"})
    corrections: Mapping[str, Tensor] = field(default_factory=dict)
    fitted_with: str | None = None
    quantization: Mapping[str, str] = field(default_factory=dict)
    producer: Mapping[str, Any] = field(default_factory=dict)
    measured: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_table()
        if self.sigmas is not None and len(self.sigmas) != self.num_ticks:
            raise ScheduleError(f"sigmas: {len(self.sigmas)} noise levels for {self.num_ticks} ticks.")
        if self.sigmas is not None and not torch.tensor(self.sigmas).isfinite().all():
            raise ScheduleError("sigmas: a noise level is not finite.")
        for name, tensor in self.corrections.items():
            if not isinstance(tensor, Tensor):
                raise ScheduleError(f"corrections.{name}: must be a tensor, not {tensor!r}.")
            if not tensor.isfinite().all():
                raise ScheduleError(f"corrections.{name}: a coefficient is not finite.")

    @property
    def num_ticks(self) -> int:
        return len(next(iter(next(iter(self.table.values())).values())))

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(self.table)

    @property
    def branches(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(branch for rows in self.table.values() for branch in rows))

    @property
    def computed_ticks(self) -> list[int]:
        """The ticks at which at least one site is computed in at least one branch."""
        ticks: list[int] = self.decisions.flatten(1).any(1).nonzero().flatten().tolist()
        return ticks

    @property
    def decisions(self) -> Tensor:
        """Bool [tick, branch, site]: True where a site is computed."""
        table = torch.zeros(self.num_ticks, len(self.branches), len(self.sites), dtype=torch.bool)
        for s, rows in enumerate(self.table.values()):
            for branch, marks in rows.items():
                computed = [mark == Decision.COMPUTE.value for mark in marks]
                table[:, self.branches.index(branch), s] = torch.tensor(computed)
        return table

    def marks(self, site: str, branch: str) -> str:
        """The marks of a branch at a site, one for each tick; none where the schedule does not know it."""
        rows = self.table.get(site, {})
        return rows.get(branch, rows.get(ALL, ""))

    def decision(self, site: str, branch: str, tick: int) -> Decision:
        """The decision for a call; a call that the schedule does not know is computed."""
        marks = self.marks(site, branch)
        known = tick < len(marks) and marks[tick] != NOT_CALLED
        return Decision(marks[tick]) if known else Decision.COMPUTE

    @property
    def expected_error(self) -> float | None:
        """Root mean square difference to the full run's result, as a fraction of its contrast: estimated before the run, or measured by `tune`.

        None where nothing was expected.
        """
        return expected_error_in(self.measured)

    def __eq__(self, other: object) -> bool:
        """Whether both say the same once they are written: a file has lists in place of tuples, and null in place of NaN."""
        if not isinstance(other, Schedule):
            return NotImplemented
        return plain(as_json(self)) == plain(as_json(other)) and all(
            torch.equal(tensor, other.corrections[name]) for name, tensor in self.corrections.items()
        )

    def __repr__(self) -> str:
        """One line: who made it, for which denoisers, and what it computes. All fields would fill pages."""
        made, predictor = self.producer.get("method", "hand"), self.predictor.get("name")
        names = ", ".join(dict.fromkeys(model.name for model in self.models.values())) or "any denoiser"
        work, error = self.measured.get("compute_fraction"), self.expected_error
        told = [
            f"{len(self.computed_ticks)} of {self.num_ticks} ticks computed",
            *([f"{work:.1%} of the work"] if isinstance(work, (int, float)) else []),
            *([] if error is None else [f"expected error {error:.2%}"]),
        ]
        return f"<Schedule by {made} for {names}, predictor {predictor}: {', '.join(told)}>"

    def fingerprint(self) -> str:
        """Hash of its decisions and quantisation. Corrections that were fitted with others do not fit."""
        table = {site: dict(rows) for site, rows in self.table.items()}
        text = json.dumps([table, dict(self.predictor), dict(self.quantization) or None], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def resampled(self, num_ticks: int, sigmas: Sequence[float] | None = None) -> "Schedule":
        """This schedule for another number of ticks, without its corrections.

        Each new tick takes the decision of the old tick that is nearest in noise level. If the noise levels of one side are
        unknown, it is the nearest in the fraction of the run.

        Args:
            num_ticks: length of the new run.
            sigmas: its noise levels; None where unknown.
        """
        if sigmas is not None and self.sigmas is not None:
            here = torch.tensor(self.sigmas)
            nearest = [int((here - sigma).abs().argmin()) for sigma in sigmas]
        else:
            nearest = [round(i * (self.num_ticks - 1) / max(num_ticks - 1, 1)) for i in range(num_ticks)]
        table = {
            site: {branch: "".join(marks[i] for i in nearest) for branch, marks in rows.items()}
            for site, rows in self.table.items()
        }
        levels = None if sigmas is None else tuple(sigmas)
        predictor = {name: value for name, value in self.predictor.items() if name != INFLUENCE}
        return replace(
            self,
            table=table,
            sigmas=levels,
            predictor=predictor,
            corrections={},
            fitted_with=None,
            measured={},
        )

    def diff(self, other: "Schedule") -> str:
        """The fields that differ in another schedule, one in each line; empty where none does."""
        mine, theirs = (_flat(json.loads(json_text(as_json(schedule)))) for schedule in (self, other))
        keys = dict.fromkeys([*mine, *theirs])
        return "\n".join(
            f"{key}: {mine.get(key)} -> {theirs.get(key)}" for key in keys if mine.get(key) != theirs.get(key)
        )

    def save_pretrained(self, folder: str | Path) -> Path:
        """Writes `cache_schedule.json`, and `cache_schedule.safetensors` if there are corrections."""
        return save(self, Path(folder))

    @classmethod
    def from_pretrained(cls, name: str | Path) -> "Schedule":
        """Reads a schedule from a folder or from the hub, and checks every field.

        Raises:
            ScheduleError: a field is missing or wrong; the message names the field and the file.
        """
        return load(name, cls._of_fields)

    @classmethod
    def from_json(cls, data: Mapping[str, Any], corrections: Mapping[str, Tensor]) -> "Schedule":
        """The schedule of what `as_json` returned, and the values of its corrections."""
        return made_of(data, corrections, cls._of_fields)

    @classmethod
    def _of_fields(cls, *, models: Mapping[str, tuple[Any, ...]], **fields: Any) -> "Schedule":
        return cls(models={site: Model(*model) for site, model in models.items()}, **fields)

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Uploads the schedule to a hub repository, which is made if it does not exist; returns its address.

        Args:
            repo_id: "user/name".
            **options: `private`, `token`, `commit_message`, as for `huggingface_hub`.
        """
        return upload(self.save_pretrained, repo_id, **options)

    def _check_table(self) -> None:
        if not self.table or not all(self.table.values()):
            raise ScheduleError("table: there is no site, or a site without a branch.")
        for site, rows in self.table.items():
            for branch, marks in rows.items():
                if not isinstance(marks, str):
                    raise ScheduleError(f"table.{site}.{branch}: must be a text of marks, not {marks!r}.")
                if len(marks) != self.num_ticks or not marks:
                    raise ScheduleError(
                        f"table.{site}.{branch}: {len(marks)} ticks where others have {self.num_ticks}."
                    )
                if set(marks) - MARKS:
                    raise ScheduleError(f"table.{site}.{branch}: marks must be of {' '.join(sorted(MARKS))}.")


def marks_of(computed: Iterable[bool]) -> str:
    """A row of a schedule's table: "#" for each tick that is computed, "-" for each that is predicted."""
    return "".join((Decision.COMPUTE if computes else Decision.PREDICT).value for computes in computed)


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        return {
            k: v for key, item in value.items() for k, v in _flat(item, f"{path}.{key}".strip(".")).items()
        }
    return {path: value}
