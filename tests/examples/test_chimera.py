"""The morphing example: what is recorded is blended in, and weight 0 changes nothing."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

from diffcache.evals.testbeds import zoo

FILE = Path(__file__).resolve().parents[2] / "examples" / "chimera.py"


@pytest.fixture(scope="module")
def chimera():
    spec = spec_from_file_location("chimera", FILE)
    module = module_from_spec(spec)
    sys.modules["chimera"] = module  # where dataclasses look their own module up
    spec.loader.exec_module(module)
    module.STEPS = 8
    return module


@pytest.fixture(scope="module")
def morph(chimera):
    return chimera.Morph(zoo.load("flux"), chimera.PAIRS[0])


def test_weight_zero_changes_nothing_to_the_bit(chimera, morph):
    alphas = torch.tensor([0.0, 0.5])
    pictures, injections = morph.between(alphas, 0.0)
    blocks = len(morph.denoiser.transformer_blocks) + len(morph.denoiser.single_transformer_blocks)
    assert injections == 3 * blocks  # ticks 1 to 4, but for the one at which the anchor ends
    assert torch.equal(pictures, morph.alone(alphas))


def test_the_second_picture_is_blended_into_the_first(morph):
    ends = morph.between(torch.tensor([0.0, 1.0]), 0.0)[0]
    whole = morph.between(torch.tensor([1.0]), 1.0)[0]
    assert float((whole[0] - ends[1]).square().mean()) < 0.1 * float((ends[0] - ends[1]).square().mean())
    part = morph.between(torch.tensor([0.5]), 0.4)[0]
    assert not torch.equal(part, morph.between(torch.tensor([0.5]), 0.0)[0])


def test_slerp_keeps_length_and_ends(chimera):
    a, b = torch.nn.functional.normalize(torch.randn(2, 5, 8), dim=-1)
    half = chimera.slerp(a, b, torch.tensor(0.5))
    assert torch.allclose(half.norm(dim=-1), torch.ones(5), atol=1e-5)
    assert torch.allclose(chimera.slerp(a, b, torch.tensor(0.0)), a, atol=1e-5)
    assert torch.allclose(chimera.slerp(a, b, torch.tensor(1.0)), b, atol=1e-5)


def test_a_strip_without_two_ends_is_refused(chimera, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["chimera.py", "--pictures", "1"])
    monkeypatch.setattr(chimera.zoo, "load", None)
    with pytest.raises(SystemExit):
        chimera.main()
    assert "give at least 2" in capsys.readouterr().err
