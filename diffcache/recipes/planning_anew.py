"""From a schedule that was planned with the pipeline's own covariance to the method that plans other runs with it."""

from diffcache.prediction.descriptions import predictor_from
from diffcache.prediction.predictors import Conditional
from diffcache.recipes.trajectory import TrajectoryConfig
from diffcache.schedulers.schedule import Schedule


def planning_anew(schedule: Schedule, ticks: int, hindsight: bool | None = None) -> TrajectoryConfig | None:
    """The method `trajectory` at a schedule's speed-up, with the covariance and the response that it was planned with, and the predictions that it has.

    Args:
        schedule: of one denoiser.
        ticks: length of the run to plan. Where the speed-up would leave no tick, one is computed.
        hindsight: see `CacheConfig`.

    Returns:
        None for a schedule that holds no measured covariance, or not the noise levels where it was measured.
    """
    predictor = predictor_from(schedule.predictor)
    if not isinstance(predictor, Conditional) or predictor.measured is None:
        return None
    measured = predictor.measured
    return TrajectoryConfig(
        speedup=min(schedule.num_ticks / max(len(schedule.computed_ticks), 1), ticks),
        covariance=predictor.covariance.tolist(),
        response=None if measured.response is None else measured.response.tolist(),
        angles=measured.angles,
        pure_noise=measured.pure_noise,
        amplification=measured.amplification,
        predicts_with=measured.predicts_with,
        hindsight=hindsight,
    )
