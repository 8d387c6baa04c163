"""Which corrections in the noise scheduler's steps a run has."""

from diffcache.discovery.site_names import is_inside
from diffcache.engine.choices import Choices
from diffcache.engine.guided_steps import GuidedSteps
from diffcache.engine.last_step import LastStep
from diffcache.engine.observers import Observer
from diffcache.engine.retracing import Retracing
from diffcache.engine.shown_steps import ShownSteps
from diffcache.engine.step_correction import StepCorrection
from diffcache.store.rings import StoreSetup


def step_corrections_for(
    choices: Choices, setup: StoreSetup, observer: Observer, *, hand_written: bool
) -> tuple[StepCorrection, ...]:
    """What corrects in the noise scheduler's steps, in one run of a denoiser, in this order. What only looks on comes last."""
    timetable, weights, is_shadow = setup.timetable, choices.last_step, observer.shadow
    chosen = (
        _hindsight_for(choices, setup, observer),
        None if weights is None or is_shadow else LastStep(timetable, weights, hand_written=hand_written),
        ShownSteps(timetable, observer) if observer.sees_steps else None,
    )
    return tuple(correction for correction in chosen if correction is not None)


def _hindsight_for(choices: Choices, setup: StoreSetup, observer: Observer) -> StepCorrection | None:
    """Hindsight in the noise scheduler's steps; None where nothing is corrected, or outputs are.

    A run that is only looked at may go on with what was computed, and then nothing is to be corrected. With sites or tokens inside,
    ticks are computed in part.
    """
    in_parts = is_inside(choices.sites) or choices.rows is not None
    if not setup.hindsight or in_parts or observer.shadow:
        return None
    influence = setup.timetable.influence
    if influence is not None and influence.clips:
        return Retracing(setup.timetable, setup)
    is_one = not choices.per_sample and choices.facts.experts == 1
    if choices.facts.guidance.is_linear or choices.basis != "velocity" or not is_one:
        return None
    return GuidedSteps(setup.timetable, setup)
