"""Blocks fit a form if they differ in nothing but their weights."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import nn

from diffcache.discovery.likeness import BlockForm


def block() -> nn.Module:
    made = nn.Module()
    made.register_buffer("table", torch.zeros(3))
    made.linear, made.norm, made.none = nn.Linear(4, 4), nn.LayerNorm(4), None
    made.register_module("empty", None)
    made.order, made.sizes = 1, [4, 4]
    return made


def change_value(net: nn.Module) -> None:
    net.order = 2


def change_type(net: nn.Module) -> None:
    net.order = True


def change_list(net: nn.Module) -> None:
    net.sizes = [4, 5]


def change_inner_value(net: nn.Module) -> None:
    net.norm.eps = 1.0


def add_attribute(net: nn.Module) -> None:
    net.extra = 1


def change_item_of_tuple(net: nn.Module) -> None:
    net.norm.normalized_shape = (5,)


def change_type_of_item(net: nn.Module) -> None:
    net.norm.normalized_shape = (4.0,)


def put_tensor_into_tuple(net: nn.Module) -> None:
    net.norm.normalized_shape = (torch.zeros(4),)


def make_buffer_of_parameter(net: nn.Module) -> None:
    net.linear._buffers["bias"] = net.linear._parameters.pop("bias")


def drop_bias(net: nn.Module) -> None:
    net.linear.bias = None


def change_strides(net: nn.Module) -> None:
    net.linear.weight = nn.Parameter(net.linear.weight.detach().t())


def move_empty_child(net: nn.Module) -> None:
    net._modules["empty"], net._modules["norm"] = net._modules["norm"], None


def change_shape(net: nn.Module) -> None:
    net.linear.weight = nn.Parameter(torch.zeros(2, 4))


def change_dtype(net: nn.Module) -> None:
    net.linear.weight.data = net.linear.weight.data.double()


def change_buffer(net: nn.Module) -> None:
    net.table = torch.zeros(4)


def fill_child(net: nn.Module) -> None:
    net.empty = nn.Identity()


def change_class(net: nn.Module) -> None:
    net.norm = nn.RMSNorm(4)


def rename_child(net: nn.Module) -> None:
    net.other = net._modules.pop("norm")


def replace_forward(net: nn.Module) -> None:
    net.linear.forward = net.norm.forward


def hook(net: nn.Module) -> None:
    net.norm.register_forward_hook(lambda *given: None)


CHANGES: list[Callable[[nn.Module], None]] = [
    change_value, change_type, change_list, change_inner_value, change_item_of_tuple, change_type_of_item,
    put_tensor_into_tuple, make_buffer_of_parameter, drop_bias, change_strides, add_attribute, change_shape, change_dtype,
    change_buffer, fill_child, move_empty_child, change_class, rename_child, replace_forward, hook,
]  # fmt: skip


def test_a_block_with_other_weights_fits() -> None:
    other = block()
    nn.init.ones_(other.linear.weight)
    assert BlockForm(block()).fits(other)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_block_that_differs_in_more_does_not_fit(change: Callable[[nn.Module], None]) -> None:
    form, other = BlockForm(block()), deepcopy(block())
    change(other)
    assert not form.fits(other)
