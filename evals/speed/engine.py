"""The engine's own time: how much longer a denoiser call takes because it is accelerated.

It is the time of the whole call minus that of the module inside it, both measured in the same call.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from diffusers import FluxTransformer2DModel, WanTransformer3DModel
from torch import Tensor, nn

from diffcache.api import accelerate, report, restore
from diffcache.attach.attach import denoising_run
from diffcache.engine.site_pass import SitePass
from diffcache.profiling.recording.stopwatch import now

METHODS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("easycache", {"threshold": 0.0}),
    ("uniform", {"interval": 1}),
    ("uniform", {"interval": 1, "site": "sub-layer"}),
    ("uniform", {"interval": 2, "order": 1}),
    ("easycache", {"threshold": 1.0, "warmup_steps": 3}),
)


@dataclass(frozen=True)
class Denoiser:
    """A network, the keyword arguments of a call with a latent at a time in 0..1, and the first latent."""

    net: nn.Module
    call: Callable[[Tensor, float], dict[str, Any]]
    latent: Tensor


def flux() -> Denoiser:
    """A Flux of some hundred million parameters, random weights, 256 image tokens."""
    net = FluxTransformer2DModel(
        in_channels=64, num_layers=3, num_single_layers=6, attention_head_dim=64, num_attention_heads=16,
        joint_attention_dim=1024, pooled_projection_dim=256, guidance_embeds=False, axes_dims_rope=(16, 24, 24),
    ).eval()  # fmt: skip
    text, pooled = torch.randn(1, 64, 1024), torch.randn(1, 256)
    image_ids, text_ids = torch.zeros(256, 3), torch.zeros(64, 3)

    def call(x: Tensor, t: float) -> dict[str, Any]:
        return {
            "hidden_states": x, "timestep": torch.tensor([t]), "encoder_hidden_states": text,
            "pooled_projections": pooled, "img_ids": image_ids, "txt_ids": text_ids, "return_dict": False,
        }  # fmt: skip

    return Denoiser(net, call, torch.randn(1, 256, 64))


def wan() -> Denoiser:
    """A Wan of some hundred million parameters, random weights, 512 video tokens."""
    net = WanTransformer3DModel(
        num_attention_heads=8, attention_head_dim=128, ffn_dim=4096, num_layers=6, text_dim=512, freq_dim=256
    ).eval()
    text = torch.randn(1, 64, 512)

    def call(x: Tensor, t: float) -> dict[str, Any]:
        return {
            "hidden_states": x, "timestep": torch.tensor([1000 * t]), "encoder_hidden_states": text,
            "return_dict": False,
        }  # fmt: skip

    return Denoiser(net, call, torch.randn(1, 16, 2, 32, 32))


DENOISERS = {"flux": flux, "wan": wan}


def engine_times(denoiser: Denoiser, method: str, ticks: int, **options: Any) -> dict[str, Any]:
    """The engine's time on computed and on reused ticks, as a share of the module's; medians over ticks.

    Args:
        denoiser: it is plain again afterwards.
        method: its name.
        ticks: of the run.
        **options: of the method.
    """
    net, x = denoiser.net, denoiser.latent
    computed: list[float] = []
    reused: list[float] = []
    module: list[float] = []
    with _module_time(net) as inside:
        accelerate(net, method, **options)
        with torch.no_grad(), denoising_run(net, ticks, [1 - i / ticks for i in range(ticks)]) as run:
            for i in range(ticks):
                run.begin_step(i)
                inside.seconds = 0.0
                arguments = denoiser.call(x, 1 - i / ticks)
                start = now()
                v = net(**arguments)[0]
                total = now() - start
                x = x - v / ticks
                (computed if inside.seconds else reused).append(total - inside.seconds)
                if inside.seconds:
                    module.append(inside.seconds)
        ticks_computed = len(report(net).computed_ticks)
        restore(net)
    return {
        "method": method,
        "options": options,
        "ticks_computed": f"{ticks_computed}/{ticks}",
        "module_ms": 1e3 * median(module),
        "computed_tick_overhead": median(computed) / median(module),
        "reused_tick_cost": median(reused) / median(module) if reused else None,
    }


@dataclass
class _Inside:
    """Seconds spent in the module itself since they were last set to 0."""

    seconds: float = 0.0


@contextmanager
def _module_time(net: nn.Module) -> Iterator[_Inside]:
    """Measures the module's own time: its forward, minus what the engine does around units inside it."""
    inside = _Inside()
    plain_forward, plain_unit = net.forward, SitePass.unit

    def unit(self: SitePass, module: nn.Module, forward: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        beneath = 0.0

        def timed_forward(*args: Any, **kwargs: Any) -> Any:
            nonlocal beneath
            start = now()
            output = forward(*args, **kwargs)
            beneath += now() - start
            return output

        start = now()
        output = plain_unit(self, module, timed_forward, args, kwargs)
        inside.seconds -= now() - start - beneath
        return output

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = now()
        output = plain_forward(*args, **kwargs)
        inside.seconds += now() - start
        return output

    net.forward, SitePass.unit = timed, unit  # type: ignore[method-assign]
    try:
        yield inside
    finally:
        del net.forward
        SitePass.unit = plain_unit  # type: ignore[method-assign]
