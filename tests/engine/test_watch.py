"""The watch, on a trained testbed: a predictor that is worse than holding does no harm."""

from diffcache import UniformConfig
from diffcache.evals.harness.rendering import render
from diffcache.evals.metrics.fidelity import psnr
from diffcache.evals.testbeds import zoo


def test_an_adversarial_predictor_stays_at_the_level_of_holding() -> None:
    pipe, call = zoo.load("flux"), zoo.sample_call("flux", 0, 40, 2)
    full = render(pipe, call).pictures

    def quality(**options: object) -> float:
        config = UniformConfig(interval=6, warmup_steps=3, basis="output", **options)
        return float(psnr(render(pipe, call, config).pictures, full).median())

    held, extrapolated = quality(order=0), quality(order=2)
    watched = quality(order=2, watch_bound=1.0)
    assert extrapolated < held - 3  # order 2 over six ticks really is adversarial here
    assert watched > held - 0.5
