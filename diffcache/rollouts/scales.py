"""Next-scale models whose attentions keep keys and values themselves, in the form that VAR and Infinity published.

Such a module has `caching`, `cached_k` and `cached_v`, and adds each scale to them. Inside `scales`, what they keep is cut down to a
policy's budgets after each scale.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from diffcache.hooks.attention_calls import AttentionCall
from diffcache.hooks.module_calls import ModuleCalls, replaced
from diffcache.rollouts.attending import AttentionSite, attended
from diffcache.rollouts.book import Book, joined
from diffcache.rollouts.policies import Chunk, RolloutPolicy
from diffcache.rollouts.scale_kv import drafters_of, mean_by_scale, relative_selectivity, selectivity
from diffcache.schedulers.errors import ConfigError, TargetError
from diffcache.schedulers.numbers_given import is_count


class ScaleCaches:
    """The caches of a model's attentions under a policy; see `scales`.

    Args:
        model: has such modules.
        policy: what they keep.

    Attributes:
        kept_bytes: of all caches after each scale of the newest sample.
        most_bytes: the most bytes of all caches at any time of it, before they were cut down.
    """

    def __init__(self, model: nn.Module, policy: RolloutPolicy) -> None:
        self.modules = caching_modules(model)
        policy.check(Chunk(frame=0, frames=1, per_frame=1, layers=len(self.modules)))
        self.policy = policy
        self.kept_bytes: list[int] = []
        self.most_bytes = 0
        self._books: dict[str, Book] = {}
        self._scales: dict[str, int] = {}
        self._attention: dict[str, AttentionCall] = {}

    def note(self, site: AttentionSite, call: AttentionCall) -> Tensor:
        """Computes an attention, and remembers what it was."""
        self._attention[site.module] = call
        return call.compute()

    @torch.no_grad()
    def cut(self, name: str, module: Any) -> None:
        """A module has added a scale: its cache is cut down to the policy's budget."""
        call = self._attention.pop(name, None)
        if not module.caching or module.cached_k is None or call is None:
            return
        chunk = self._added(name, module, call)
        self.most_bytes = max(self.most_bytes, self._bytes())
        if self.policy.is_judging(self._books[name], chunk):
            self._choose(name, module, call, chunk)
        if chunk.layer == chunk.layers - 1:
            self.kept_bytes.append(self._bytes())

    def _added(self, name: str, module: Any, call: AttentionCall) -> Chunk:
        """Enters the new scale in the module's book. A cache that holds no more than the new tokens begins a sample."""
        key, _, _ = _heads_first(module, call)
        new, layers = call.query.shape[2], list(self.modules)
        begins = key.shape[2] == new
        scale = 0 if begins else self._scales[name] + 1
        marks = torch.full((new,), scale)
        before = Book.empty() if begins else self._books[name]
        self._scales[name] = scale
        self._books[name] = joined((before, Book.of_chunk(marks, marks, key.shape[0])))
        if begins and name == layers[0]:
            self.kept_bytes, self.most_bytes = [], 0
        return Chunk(scale, 1, new, layers.index(name), len(layers))

    def _choose(self, name: str, module: Any, call: AttentionCall, chunk: Chunk) -> None:
        """Drops what is not relevant to the new scale's queries."""
        key, value, transposed = _heads_first(module, call)
        queries = self.policy.observed(call.query, chunk)
        relevance = self.policy.relevance(
            call.query if queries is None else queries, key, _scale_of(call)
        ).cpu()
        index = self.policy.kept(self._books[name], chunk, relevance)
        if index is None:
            return
        self._books[name] = self._books[name].weighed(relevance).chosen(index)
        at = index.expand(*key.shape[:2], -1)[..., None].to(key.device)
        chosen = (part.gather(2, at.expand(-1, -1, -1, part.shape[-1])) for part in (key, value))
        module.cached_k, module.cached_v = (
            part.transpose(1, 2).contiguous() if transposed else part for part in chosen
        )

    def _bytes(self) -> int:
        caches = [part for module in self.modules.values() for part in (module.cached_k, module.cached_v)]
        return sum(part.nbytes for part in caches if part is not None)


@contextmanager
def scales(model: nn.Module, policy: RolloutPolicy) -> Iterator[ScaleCaches]:
    """Inside, the model's caches are cut down to a policy's budgets after each scale.

    Args:
        model: its attentions have `caching`, `cached_k` and `cached_v`, and end in `scaled_dot_product_attention`.
        policy: `ScaleKV`, or another whose `kept` goes by relevance.

    Raises:
        TargetError: it has no such modules.
        ConfigError: there is no policy, or it names layers that the model does not have.
    """
    if not isinstance(policy, RolloutPolicy):
        raise ConfigError(
            f"policy={policy!r}: give a ScaleKV(), or another RolloutPolicy that goes by relevance."
        )
    caches = ScaleCaches(model, policy)
    with ExitStack() as stack:
        for name, module in caches.modules.items():
            stack.enter_context(replaced(module, _after(caches, name)))
        stack.enter_context(attended(ModuleCalls(caches.modules), caches.note))
        yield caches


def choose_drafters(
    model: nn.Module, sample: Callable[[], Any], count: int, top: int = 16
) -> tuple[int, ...]:
    """Which layers are drafters, by their selectivity in a few samples.

    Args:
        model, sample, top: as for `layer_selectivity`.
        count: how many drafters there are to be.

    Raises:
        TargetError: the model has no modules with caches, or not more than `count`.
        ConfigError: `top` is no whole number above 0, or `sample` draws nothing with the model's caches.
    """
    modules = caching_modules(model)
    if not is_count(count) or count >= len(modules):
        raise TargetError(f"{count} drafters of {len(modules)} attentions: choose fewer, and at least one.")
    return drafters_of(relative_selectivity(layer_selectivity(model, sample, top)), count)


def layer_selectivity(model: nn.Module, sample: Callable[[], Any], top: int = 16) -> list[list[float]]:
    """The attention selectivity index by scale and layer, mean over samples; scales without a past are left out.

    Args:
        model: as for `scales`.
        sample: draws one or more samples, with caching.
        top: so many past tokens count in the index.

    Raises:
        TargetError: the model has no modules with caches.
        ConfigError: `top` is no whole number above 0, or `sample` draws nothing with the model's caches.
    """
    if not callable(sample):
        raise ConfigError(f"sample={sample!r}: give a function that draws from the model, with its caches.")
    if not is_count(top):
        raise ConfigError(f"top={top!r}: give a whole number of tokens, 1 at least.")
    modules = caching_modules(model)
    names = list(modules)
    found: dict[tuple[int, int], list[float]] = defaultdict(list)
    reached: dict[str, int] = {}

    def note(site: AttentionSite, call: AttentionCall) -> Tensor:
        if site.module in modules:
            begins = call.key.shape[2] == call.query.shape[2]
            reached[site.module] = 0 if begins else reached[site.module] + 1
            index = selectivity(call.query, call.key, _scale_of(call), top)
            found[reached[site.module], names.index(site.module)].append(index)
        return call.compute()

    with torch.no_grad(), attended(ModuleCalls(modules), note):
        sample()
    if not (by_scale := mean_by_scale(found)):
        raise ConfigError(
            "sample= drew no two scales with the model's caches: give a function that draws from this model, with caching."
        )
    return by_scale


def caching_modules(model: nn.Module) -> dict[str, Any]:
    """The modules that keep keys and values themselves, by name.

    Raises:
        TargetError: there are none.
    """
    found = {
        name: module
        for name, module in (model.named_modules() if isinstance(model, nn.Module) else ())
        if all(hasattr(module, attribute) for attribute in ("caching", "cached_k", "cached_v"))
    }
    if not found:
        raise TargetError(
            f"{type(model).__name__} has no attention with caching, cached_k and cached_v: give a next-scale model of VAR's form."
        )
    return found


def _scale_of(call: AttentionCall) -> float:
    """What an attention's products are multiplied by."""
    return float(call.options.get("scale") or call.query.shape[-1] ** -0.5)


def _after(caches: ScaleCaches, name: str) -> Callable[..., Any]:
    def cut(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        caches.cut(name, module)
        return output

    return cut


def _heads_first(module: Any, call: AttentionCall) -> tuple[Tensor, Tensor, bool]:
    """A cache as [B, H, T, D], and whether it lies as [B, T, H, D]."""
    key, value = module.cached_k, module.cached_v
    if key.shape[:3] == call.key.shape[:3]:
        return key, value, False
    if key.transpose(1, 2).shape[:3] == call.key.shape[:3]:
        return key.transpose(1, 2), value.transpose(1, 2), True
    raise TargetError(
        f"a cache of shape {tuple(key.shape)} does not fit an attention on keys {tuple(call.key.shape)}: it is of another form."
    )
