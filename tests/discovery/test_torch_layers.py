"""Torch's own transformer layers: their sub-layers are found and cached, and a layer that runs fused is left whole."""

import pytest
import torch
from torch import Tensor, nn

from diffcache import accelerate, denoising_run, discover, report, restore
from diffcache.discovery.storage_trace import Trace

WIDTH, HEADS, STEPS = 16, 2, 6


class Decoder(nn.Module):
    def __init__(self, norm_first: bool = True, batch_first: bool = True) -> None:
        super().__init__()
        layer = nn.TransformerDecoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.1, batch_first=batch_first, norm_first=norm_first
        )
        self.decoder = nn.TransformerDecoder(layer, 2)

    def forward(self, sample: Tensor, timestep: Tensor, memory: Tensor) -> Tensor:
        result: Tensor = self.decoder(sample + timestep, memory)
        return result


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, sample: Tensor, timestep: Tensor, memory: Tensor) -> Tensor:
        result: Tensor = self.encoder(sample + timestep + memory.mean(1, keepdim=True))
        return result


def arguments() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 5, WIDTH, generator=generator), torch.ones(()), torch.ones(3, 4, WIDTH)


def made(cls: type[nn.Module], **options: bool) -> nn.Module:
    torch.manual_seed(0)
    return cls(**options).eval()


@torch.no_grad()
def looped(net: nn.Module) -> Tensor:
    x, t, memory = arguments()
    with denoising_run(net, STEPS) as run:
        for i in range(STEPS):
            run.begin_step(i)
            x = x - net(x, t * (1 - i / STEPS), memory) / STEPS
    return x


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_a_decoder_layer_has_three_sub_layers(norm_first: bool, batch_first: bool) -> None:
    net = made(Decoder, norm_first=norm_first, batch_first=batch_first)
    x, t, memory = arguments()
    found = discover(net, x, t, memory if batch_first else memory[:, :1].expand(-1, 5, -1))
    kinds = {
        site.name: site.kind
        for site in found
        if site.kind not in ("model", "stack", "block") and not site.reason
    }
    assert kinds == {
        f"decoder.layers.{i}.{name}": kind
        for i in range(2)
        for name, kind in (
            ("self_attn", "self-attention"),
            ("multihead_attn", "cross-attention"),
            (f"linear1..decoder.layers.{i}.linear2", "feed-forward"),
        )
    }
    assert sum(site.share for site in found if site.name in kinds) == pytest.approx(1)


def test_computing_every_tick_gives_what_the_plain_network_gives() -> None:
    net = made(Decoder)
    plain = looped(net)
    accelerate(net, "uniform", interval=1, site="sub-layer")
    assert torch.equal(looped(net), plain)
    assert torch.equal(looped(restore(net)), plain)


def test_what_is_reused_is_not_called() -> None:
    net = made(Decoder)
    plain = looped(net)
    calls: list[str] = []
    for name, module in net.named_modules():
        if name.endswith(("self_attn", "multihead_attn", "linear1", "linear2")):
            module.register_forward_hook(lambda *_, name=name: calls.append(name))
    accelerate(net, "uniform", interval=3, site="sub-layer")
    cached = looped(net)
    assert report(net).compute_fraction == pytest.approx(3 / 6)
    assert {calls.count(name) for name in set(calls)} == {3}
    assert 0 < float((cached - plain).abs().max()) < 0.5


def test_one_sub_layer_is_cached_by_its_name_as_by_its_kind() -> None:
    for site in ("feed-forward", "decoder.layers.1.linear1..decoder.layers.1.linear2", "cross-attention"):
        net = made(Decoder)
        accelerate(net, "uniform", interval=2, site=site)
        looped(net)
        assert 0 < report(net).compute_fraction < 1


def test_an_encoder_layer_that_runs_fused_is_cached_whole() -> None:
    net = made(Encoder).requires_grad_(False)
    plain = looped(net)
    table = discover(net, *arguments())
    assert [site.kind for site in table] == ["model", "stack", "block", "block"]
    assert [round(site.share, 2) for site in table] == [1, 1, 0.5, 0.5]
    accelerate(net, "uniform", interval=2, site="sub-layer")
    with pytest.raises(
        ValueError, match="Encoder cannot be cached at 'sub-layer': it has none, only model, stack"
    ):
        looped(net)
    accelerate(net, "uniform", interval=2, site="block")
    assert not torch.equal(looped(net), plain)
    assert report(net).compute_fraction == pytest.approx(4 / 6)
    assert torch.equal(looped(restore(net)), plain)


@pytest.mark.parametrize("cls", [Decoder, Encoder])
def test_fused_operations_are_counted_like_what_they_fuse(cls: type[nn.Module]) -> None:
    net = made(cls).requires_grad_(False)
    fused = counted(net)
    for module in net.modules():
        module.register_forward_hook(lambda *_: None)  # torch does not fuse what is hooked
    assert fused == counted(net)


def counted(net: nn.Module) -> int:
    x, t, memory = arguments()
    with torch.no_grad(), Trace([x]) as trace:
        net(x, t, memory)
    return trace.flops
