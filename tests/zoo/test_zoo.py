"""Every denoiser of the zoo gives finite outputs, the same each time, that depend on all of its inputs."""

from __future__ import annotations

import diffusers
import pytest
import torch
from diffusers.models import transformers, unets
from zoo.denoiser_case import like, tensors
from zoo.denoisers import CASES, REFUSED, UNBUILDABLE, loop


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def classes(names):
    return {name.split("-")[0] for name in names}


@pytest.mark.parametrize("name", CASES)
def test_denoiser_is_finite_repeatable_and_sensitive(name):
    case = CASES[name]
    module = case.build()
    first, second, third = case.time_values(4)[1:]

    def outputs(kwargs, time=first, end=second):
        with torch.no_grad():
            return case.output(module(**case.at(kwargs, time, end)))

    inputs = case.inputs(torch.Generator().manual_seed(0), 1)
    disturbed = {
        key: like(inputs[key], lambda x: x * 0.9 if x.is_floating_point() else x - 1) for key in case.latents
    }
    before = [x.clone() for x in tensors(inputs)]
    reference = outputs(inputs)
    assert same(before, tensors(inputs))
    assert reference
    assert all(x.isfinite().all() for x in reference)
    assert not any(same([x], [y]) for x, y in zip(outputs({**inputs, **disturbed}), reference, strict=True))
    if case.time:
        assert not any(same([x], [y]) for x, y in zip(outputs(inputs, second, third), reference, strict=True))
    if case.text:
        assert not same(outputs(case.conditioning(inputs, 1)), reference)

    begun = []
    latents = loop(case, module, num_steps=4, branches=2, begin_step=begun.append)
    assert begun == [0, 1, 2, 3]
    assert all(x.isfinite().all() for x in latents)
    assert same(latents, loop(case, case.build(), num_steps=4, branches=2))


@pytest.mark.parametrize("name", REFUSED)
def test_refused_network_returns_residuals(name):
    case = REFUSED[name]
    with torch.no_grad():
        residuals = case.output(case.build()(**case.inputs(torch.Generator().manual_seed(0), 1)))
    assert len(residuals) > 2
    assert all(x.isfinite().all() for x in residuals)


def test_the_zoo_is_large():
    assert len(classes(CASES)) >= 88
    assert len(CASES) >= 110


@pytest.mark.skipif(
    not diffusers.__version__.startswith("0.42."), reason="the zoo was taken from Diffusers 0.42"
)
def test_every_class_is_here_or_accounted_for():
    exported = {
        name
        for module in (transformers, unets)
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__.startswith("diffusers.models")
    }
    assert exported - classes(CASES) == set(UNBUILDABLE)
