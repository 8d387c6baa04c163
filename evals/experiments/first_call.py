"""The memory of the first call of a guidance pass, in which the sites are found: beside a plain call, for each kind of site.

The denoisers have random weights: what is measured depends on shapes alone. They are deeper than they are wide, so that
memory that grows with the depth shows.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import diffusers
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from diffcache.api import accelerate, restore
from diffcache.attach.attach import denoising_run
from diffcache.discovery.units import blocks_of, is_list_member
from diffcache.evals.harness.allocations import allocated_by

Arguments = dict[str, Any]


@dataclass(frozen=True)
class DeepDenoiser:
    """A denoiser, and the sites at which it is measured.

    Attributes:
        build: makes it.
        arguments: makes the arguments of a call.
        sites: as `UniformConfig.site` names them.
    """

    build: Callable[[], Any]
    arguments: Callable[[], Arguments]
    sites: tuple[str, ...]


@dataclass(frozen=True)
class FirstCall:
    """Memory of one first call, in bytes.

    Attributes:
        site: what is cached.
        plain: peak of a call without a cache.
        learning: peak of the first call with one.
        stored: what the first call leaves in the cache.
        block: the arguments and outputs of the largest block.
    """

    site: str
    plain: int
    learning: int
    stored: int
    block: int

    @property
    def kept_on_top(self) -> int:
        """What the first call kept beside what a plain call takes and what is stored."""
        return self.learning - self.plain - self.stored


@torch.no_grad()
def first_calls(denoiser: DeepDenoiser, **options: Any) -> list[FirstCall]:
    """Measures a denoiser's first call at each of its sites, with these options of `UniformConfig`."""
    torch.manual_seed(0)
    net, arguments = denoiser.build().eval(), denoiser.arguments()
    net(**arguments)  # makes the tables that are made once
    plain, block = allocated_by(lambda: net(**arguments)), largest_block(net, arguments)
    found = []
    for site in denoiser.sites:
        accelerate(net, "uniform", site=site, **options)
        with denoising_run(net, 8) as run:
            run.begin_step(0)
            learning = allocated_by(lambda: net(**arguments))
        restore(net)
        found.append(FirstCall(site, plain.peak, learning.peak, learning.left - plain.left, block))
    return found


def largest_block(net: nn.Module, arguments: Arguments) -> int:
    """Bytes of the arguments and outputs of the block whose call has most of them."""
    sizes = [0]

    def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs, output)) if isinstance(leaf, Tensor)]
        storages = {leaf.untyped_storage().data_ptr(): leaf.untyped_storage().nbytes() for leaf in leaves}
        sizes.append(sum(storages.values()))

    blocks = [module for path, module in blocks_of(net).items() if is_list_member(path)]
    handles = [block.register_forward_hook(hook, with_kwargs=True) for block in blocks]
    try:
        net(**arguments)
    finally:
        for handle in handles:
            handle.remove()
    return max(sizes)


def as_rows(found: list[FirstCall]) -> list[dict[str, Any]]:
    return [asdict(one) for one in found]


def _flux() -> Any:
    return diffusers.FluxTransformer2DModel(
        in_channels=16, num_layers=2, num_single_layers=16, attention_head_dim=32, num_attention_heads=4,
        joint_attention_dim=64, pooled_projection_dim=32, guidance_embeds=False, axes_dims_rope=(8, 12, 12),
    )  # fmt: skip


def _flux_arguments() -> Arguments:
    return {
        "hidden_states": torch.randn(1, 256, 16), "encoder_hidden_states": torch.randn(1, 32, 64),
        "pooled_projections": torch.randn(1, 32), "timestep": torch.ones(1),
        "img_ids": torch.zeros(256, 3), "txt_ids": torch.zeros(32, 3), "return_dict": False,
    }  # fmt: skip


def _dit() -> Any:
    return diffusers.DiTTransformer2DModel(
        num_attention_heads=4, attention_head_dim=32, in_channels=4, num_layers=16, sample_size=32
    )


def _dit_arguments() -> Arguments:
    return {
        "hidden_states": torch.randn(1, 4, 32, 32), "timestep": torch.tensor([900]),
        "class_labels": torch.tensor([1]), "return_dict": False,
    }  # fmt: skip


def _sd() -> Any:
    return diffusers.UNet2DConditionModel(
        sample_size=32, block_out_channels=(32, 64, 64, 64), layers_per_block=2, cross_attention_dim=64,
        attention_head_dim=4, norm_num_groups=8,
    )  # fmt: skip


def _sd_arguments() -> Arguments:
    return {
        "sample": torch.randn(1, 4, 32, 32), "timestep": torch.tensor(900),
        "encoder_hidden_states": torch.randn(1, 16, 64), "return_dict": False,
    }  # fmt: skip


def _wan() -> Any:
    return diffusers.WanTransformer3DModel(
        num_attention_heads=4, attention_head_dim=32, ffn_dim=256, num_layers=16, text_dim=64, freq_dim=64
    )


def _wan_arguments() -> Arguments:
    return {
        "hidden_states": torch.randn(1, 16, 2, 24, 24), "timestep": torch.tensor([900.0]),
        "encoder_hidden_states": torch.randn(1, 16, 64), "return_dict": False,
    }  # fmt: skip


SUB_LAYERS = ("attention", "feed-forward", "sub-layer")
BLOCKS = ("model", "stack", "stack[1..]", "block")
DEEP_DENOISERS = {
    "dit": DeepDenoiser(_dit, _dit_arguments, (*BLOCKS, *SUB_LAYERS)),
    "flux": DeepDenoiser(_flux, _flux_arguments, (*BLOCKS, *SUB_LAYERS, "parallel")),
    "sd": DeepDenoiser(_sd, _sd_arguments, ("model", "depth 1", "depth 2", "block", *SUB_LAYERS)),
    "wan": DeepDenoiser(_wan, _wan_arguments, (*BLOCKS, *SUB_LAYERS, "cross-attention")),
}
"""By the name of the testbed of the same family."""
