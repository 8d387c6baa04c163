"""EasyCache follows its published rule: hand-computed decisions, and the published pseudo-code tick by tick."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from diffcache import accelerate, denoising_run, report
from diffcache.config import RunFacts
from diffcache.recipes.easycache import EasyCacheConfig
from diffcache.schedulers.accumulator import Accumulator
from diffcache.schedulers.signals import SecantGain
from diffcache.schedulers.steps import Step


def constant(value: float) -> Tensor:
    return torch.full((1, 4, 2, 2), value)


def test_decisions_on_recorded_tensors_equal_a_hand_computed_sequence() -> None:
    # x falls by 1 each tick, v = 2x: k = 2, and E grows by 2 * 1 / |v_c| at each tick after a computed one.
    inputs = [constant(100.0 - tick) for tick in range(12)]
    scheduler = Accumulator(SecantGain(), threshold=0.035)
    computed = []
    for tick, x in enumerate(inputs):
        signal = scheduler.measure([x])
        decision = scheduler.decide(Step(tick, 12, "0"), None if signal is None else signal.tolist())
        scheduler.arrived([x])
        if decision.computes:
            scheduler.computed([x], [2 * x])
            computed.append(tick)
    # ticks 0 and 1 have no k yet; then 2/198 + ... crosses 0.035 at every fourth tick (4 * 2/198 = 0.0404).
    assert computed == [0, 1, 5, 9]


def test_warm_up_is_as_published_and_scales_to_short_runs() -> None:
    def warmup(denoiser: str, num_ticks: int, experts: int = 1, **options: int) -> int:
        return EasyCacheConfig(**options).guards(RunFacts(denoiser, experts, num_ticks)).warmup_steps

    assert warmup("WanTransformer3DModel", 50) == 10
    assert warmup("WanTransformer3DModel", 50, experts=2) == 7
    assert warmup("HunyuanVideoTransformer3DModel", 50) == 5
    assert warmup("WanTransformer3DModel", 20) == 4
    assert warmup("WanTransformer3DModel", 100) == 10
    assert warmup("WanTransformer3DModel", 20, warmup_steps=9) == 9


@pytest.mark.parametrize(
    ("denoiser", "experts", "threshold"),
    [
        ("WanTransformer3DModel", 1, 0.05),
        ("WanTransformer3DModel", 2, 0.06),
        ("HunyuanVideoTransformer3DModel", 1, 0.025),
        ("Anything", 1, 0.05),
    ],
)
def test_thresholds_are_as_published(denoiser: str, experts: int, threshold: float) -> None:
    assert EasyCacheConfig().scheduler(RunFacts(denoiser, experts, 50)).threshold == threshold


class Flow(nn.Module):
    """A velocity field that bends with time, so that the error accumulates unevenly."""

    def forward(self, hidden_states: Tensor, timestep: float) -> Tensor:
        return 1.5 + torch.sin(0.8 * timestep**2 + 0.2 * hidden_states)


def published(
    net: nn.Module, x: Tensor, times: list[float], threshold: float, warmup: int
) -> tuple[Tensor, list[int]]:
    """The published pseudo-code, kept apart from the library on purpose."""
    error, k, x_prev, x_c, v_c, residual, computed = torch.zeros(()), None, None, None, None, None, []
    for s, t in enumerate(times):
        hit = False
        if s < warmup or s == len(times) - 1:
            error = torch.zeros(())
        elif k is not None:
            error = error + k * (x - x_prev).abs().mean() / v_c.abs().mean()
            hit = bool(error < threshold)
            if not hit:
                error = torch.zeros(())
        x_prev = x
        if hit:
            v = x + residual
        else:
            v = net(x, t)
            computed.append(s)
            if v_c is not None:
                k = (v - v_c).abs().mean() / (x - x_c).abs().mean()
            x_c, v_c, residual = x, v, v - x
        x = x - v / len(times)
    return x, computed


@pytest.mark.parametrize(("threshold", "warmup"), [(0.05, 10), (0.1, 5), (0.02, 2), (0.3, 1)])
def test_a_whole_run_matches_the_published_pseudo_code(threshold: float, warmup: int) -> None:
    net, times = Flow().eval(), [1 - i / 50 for i in range(50)]
    start = torch.randn(2, 4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    expected, computed = published(net, start, times, threshold, warmup)
    accelerate(net, "easycache", threshold=threshold, warmup_steps=warmup)
    x = start
    with torch.no_grad(), denoising_run(net, 50) as run:
        for i, t in enumerate(times):
            run.begin_step(i)
            x = x - net(x, t) / 50
    assert report(net).computed_ticks == computed
    assert 2 < len(computed) < 50
    torch.testing.assert_close(x, expected)


def test_a_repeated_input_keeps_the_gain_and_never_divides_by_zero() -> None:
    signal = SecantGain()
    for x, v in [(1.0, 1.0), (2.0, 3.0), (2.0, 3.0)]:
        signal.arrived([constant(x)])
        signal.computed([constant(x)], [constant(v)])
    assert signal.gain is not None
    assert signal.gain.tolist() == [2.0]
    fresh = SecantGain()
    for _ in range(2):
        fresh.arrived([constant(1.0)])
        fresh.computed([constant(1.0)], [constant(0.0)])
    measured = fresh.measure([constant(2.0)])
    assert measured is not None
    assert measured.isnan().all()  # NaN computes


def test_one_stream_at_its_threshold_computes_for_all() -> None:
    scheduler = Accumulator(SecantGain(), threshold=0.1)
    assert not scheduler.decide(Step(3, 10, "0"), [0.01, 0.09]).computes
    assert scheduler.decide(Step(4, 10, "0"), [0.01, 0.09]).computes


def test_threshold_zero_computes_at_a_repeated_noise_level_too() -> None:
    assert Accumulator(SecantGain(), threshold=0).decide(Step(2, 10, "0", repeats_sigma=True), [0.0]).computes


def test_a_repeated_noise_level_adds_nothing() -> None:
    scheduler = Accumulator(SecantGain(), threshold=0.1)
    scheduler.decide(Step(1, 10, "0"), [0.09])
    assert not scheduler.decide(Step(2, 10, "0", repeats_sigma=True), [0.09]).computes
    assert scheduler.decide(Step(3, 10, "0"), [0.09]).computes


def test_an_adaptive_tick_reads_the_device_once_and_a_static_one_never(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = 0

    def counting(read: Any) -> Any:
        def call(self: Tensor, *args: Any) -> Any:
            nonlocal reads
            reads += 1
            return read(self, *args)

        return call

    for name in ("item", "tolist", "__bool__", "__float__", "__int__", "numpy", "cpu"):
        monkeypatch.setattr(Tensor, name, counting(getattr(Tensor, name)))

    def reads_per_tick(method: str, **options: float) -> list[int]:
        net, x, counts = Flow().eval(), torch.randn(1, 4, 4, 4), []
        accelerate(net, method, warmup_steps=2, **options)
        with torch.no_grad(), denoising_run(net, 8) as run:
            for i in range(8):
                run.begin_step(i)
                before = reads
                x = x - net(x, 1 - i / 8) / 8
                counts.append(reads - before)
        return counts

    assert max(reads_per_tick("easycache", threshold=0.2)) == 1
    assert max(reads_per_tick("uniform", order=1)) == 0
