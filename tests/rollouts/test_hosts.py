"""Which video transformers of the zoo roll out, and why the others do not."""

import pytest
import torch
from zoo.denoisers import CASES

from diffcache import TargetError, rollout
from diffcache.rollouts.learning import learn
from diffcache.rollouts.own_caches import OWN_CACHES

HOSTS = (
    "WanTransformer3DModel",
    "WanTransformer3DModel-i2v",
    "WanTransformer3DModel-ti2v",
    "SkyReelsV2Transformer3DModel",
)
REFUSED = {
    "HunyuanVideoTransformer3DModel": "video and text attend together",
    "MochiTransformer3DModel": "video and text attend together",
    "SkyReelsV2Transformer3DModel-forcing": "has a mask of its own",
    "WanVACETransformer3DModel": "something else than with block-causal attention",
    "ChronoEditTransformer3DModel": "something else than with block-causal attention",
    "CosmosTransformer3DModel": "something else than with block-causal attention",
    "UNet3DConditionModel": "something else than with block-causal attention",
    "CogVideoXTransformer3DModel": "cannot be called with twice the frames",
    "AnyFlowFARTransformer3DModel": "encodes its whole past anew",
    "HeliosTransformer3DModel": "keeps no keys and values",
    "SanaWMLTX2RefinerTransformer3DModel": "use diffcache.rollouts.refiner.refiner_history",
    "SanaWMTransformer3DModel": "a state of fixed size",
    "WanAnimate2Transformer3DModel": "of the reference, which does not grow",
    "SanaVideoTransformer3DModel": "no attention, or several of different lengths",
    "LTXVideoTransformer3DModel": "latents are not",
    "FluxTransformer2DModel": "latents are not",
}


def prepared(name):
    case = CASES[name]
    return case.build(), case.inputs(torch.Generator().manual_seed(0), 1)


@pytest.mark.parametrize("name", HOSTS)
def test_a_host_passes_the_probe(name):
    net, call = prepared(name)
    assert learn(net, (), call).form.error <= 1e-6


@pytest.mark.parametrize("name", REFUSED)
def test_another_is_refused_with_its_reason(name):
    net, call = prepared(name)
    with torch.no_grad(), rollout(net) as video, pytest.raises(TargetError, match=REFUSED[name]):
        video(**call)


def test_all_that_keep_their_past_themselves_are_named():
    assert {name for name in OWN_CACHES if name in CASES} <= REFUSED.keys()
