"""Optimisers: Muon for the matrices inside blocks, AdamW for the rest; and an average of the weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

# Coefficients of the quintic Newton-Schulz iteration (Jordan et al. 2024, "Muon"): fast, not fully convergent.
_QUINTIC = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_MOMENTUM = 0.95
_DECAY = 0.998


def orthogonalise(matrices: Tensor) -> Tensor:
    """Moves the singular values of `matrices` [m, rows, columns] towards one."""
    a, b, c = _QUINTIC
    wide = matrices.shape[1] <= matrices.shape[2]
    x: Tensor = matrices if wide else matrices.mT
    x = x / (torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = x if wide else x.mT
    return result


class Muon:
    """Momentum with an orthogonalised update; parameters of one shape are updated as one batch."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        groups: dict[torch.Size, list[Tensor]] = defaultdict(list)
        for parameter in parameters:
            groups[parameter.shape].append(parameter)
        self.groups = list(groups.values())
        self.buffers = [torch.stack([torch.zeros_like(p).flatten(1) for p in group]) for group in self.groups]

    @torch.no_grad()
    def step(self, lr: float) -> None:
        for group, buffer in zip(self.groups, self.buffers, strict=True):
            grad = torch.stack(
                [(torch.zeros_like(p) if p.grad is None else p.grad).flatten(1) for p in group]
            )
            buffer.lerp_(grad, 1 - _MOMENTUM)
            update = orthogonalise(grad.lerp_(buffer, _MOMENTUM))
            # With this factor updates are about as large as AdamW's, so that one learning rate suits both.
            size = 0.2 * max(update.shape[1:]) ** 0.5
            for parameter, change in zip(group, update, strict=True):
                parameter.sub_(change.view_as(parameter), alpha=lr * size)


class Optimiser:
    """Muon where `is_matrix(name, parameter)` says so, AdamW elsewhere."""

    def __init__(self, model: nn.Module, is_matrix: Callable[[str, Tensor], bool]) -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self.muon = Muon(p for name, p in named if is_matrix(name, p))
        rest = [p for name, p in named if not is_matrix(name, p)]
        self.adam = torch.optim.AdamW(rest, lr=0.0, betas=(0.9, 0.99), weight_decay=0.0, foreach=True)
        self.parameters = [p for _, p in named]

    def step(self, lr: float) -> None:
        """Applies the gradients, clipped to norm 1, and clears them."""
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.muon.step(lr)
        for group in self.adam.param_groups:
            group["lr"] = lr
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        for parameter in self.parameters:
            parameter.grad = None

    def state_dict(self) -> dict[str, object]:
        return {"muon": self.muon.buffers, "adam": self.adam.state_dict()}

    def load_state_dict(self, state: dict[str, object]) -> None:
        buffers, adam = state["muon"], state["adam"]
        assert isinstance(buffers, list)
        assert isinstance(adam, dict)
        for mine, saved in zip(self.muon.buffers, buffers, strict=True):
            mine.copy_(saved)
        self.adam.load_state_dict(adam)


class Average:
    """Exponential average of a model's parameters; it forgets faster while it is young."""

    def __init__(self, model: nn.Module) -> None:
        self.count = 0
        self.values = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        self.count += 1
        weight = 1 - min(_DECAY, (1 + self.count) / (10 + self.count))
        names, live = zip(*model.named_parameters(), strict=True)
        torch._foreach_lerp_([self.values[name] for name in names], [p.detach() for p in live], weight)

    @contextmanager
    def put_into(self, model: nn.Module) -> Iterator[None]:
        """The model has the averaged weights for a while."""
        self.swap(model)
        try:
            yield
        finally:
            self.swap(model)

    @torch.no_grad()
    def swap(self, model: nn.Module) -> None:
        """Exchanges the model's weights with the average; a second call exchanges them back."""
        for name, parameter in model.named_parameters():
            kept = parameter.detach().clone()
            parameter.copy_(self.values[name])
            self.values[name].copy_(kept)
