"""What is broken on purpose while some tokens are computed: keys and values, the region, and what is known of the other tokens."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from diffcache.engine import some_tokens
from diffcache.engine.some_tokens import SomeTokens
from diffcache.hooks.attention_calls import AttentionCall
from diffcache.hooks.watcher import watched
from diffcache.prediction.predictors import Hold
from diffcache.schedulers.steps import Decision
from diffcache.store.formats import Format
from diffcache.store.key_values import KeyValues
from diffcache.store.rings import Store, StoreSetup
from diffcache.tokens import attention
from diffcache.tokens.attention import Completing, KeysAndValues
from diffcache.tokens.layout import Rows, TokenSequence
from diffcache.tokens.passes import FullPass, RowPass, TokenState
from diffcache.tokens.positions import block_paths
from diffcache.tokens.row_rule import Region, Sight


@contextmanager
def withheld() -> Iterator[None]:
    """Keys and values of tokens that are not computed are left out."""
    with patch.object(Completing, "attend", lambda self, call: call.compute()):
        yield


@contextmanager
def elsewhere() -> Iterator[None]:
    """An edit's region lies where nothing is edited: as many tokens, at the same ticks, those that are farthest from it."""
    region = Region.__call__

    def moved(self: Region, sight: Sight) -> Tensor:
        places, own = region(self, sight), sight.moving[0]
        if sight.grid is None:
            raise ValueError("elsewhere: the denoiser's arguments do not tell the grid of its tokens.")
        each = places[:, own].view(-1, *sight.grid[1:])
        places[:, own] = torch.stack([farthest(one) for one in each]).flatten(1)
        return places

    with patch.object(Region, "__call__", moved):
        yield


def farthest(region: Tensor) -> Tensor:
    """As many tokens as a region has, those that are farthest from it; bool [height, width]."""
    if not region.any():
        return region
    at = torch.ones_like(region).nonzero().float()
    distance = torch.cdist(at, at[region.flatten()]).amin(1)
    chosen = torch.zeros_like(region.flatten())
    chosen[distance.topk(int(region.sum())).indices] = True
    return chosen.view_as(region)


@contextmanager
def curved() -> Iterator[None]:
    """Keys and values are carried on by their predictor, however far away the last full call is."""
    with patch.object(SomeTokens, "_order", lambda self, state, step: Decision.PREDICT):
        yield


@contextmanager
def text_left() -> Iterator[None]:
    """Keys and values of the text are carried on too, as if it were not computed."""

    original = attention.completed

    def completed(
        call: AttentionCall, sequence: TokenSequence, rows: Rows, kept: KeysAndValues, mask: Tensor | None
    ) -> Tensor:
        index = rows.index(sequence)
        is_text = ~torch.isin(index, sequence.places)[:, None]
        key, value = (
            torch.where(is_text, known.index_select(-2, index), own)
            for known, own in zip(kept, (call.key, call.value), strict=True)
        )
        return original(call.with_keys(key, value, call.mask), sequence, rows, kept, mask)

    with patch.object(attention, "completed", completed):
        yield


@dataclass
class _Known:
    """What a call of some tokens is given: of each part what was kept, or what a full call of this tick has."""

    keys_of: TokenState
    outputs_of: TokenState
    masks: dict[str, Tensor | None]

    def key_values(self, unit: str, i: int) -> KeyValues:
        return self.keys_of.key_values(unit, i)

    def others(self) -> Store:
        return self.outputs_of.others()


def true_key_values() -> AbstractContextManager[None]:
    """Keys and values of the other tokens are those of this tick: every tick is computed in full beside it."""
    return _foreknown(lambda kept, true: _Known(true, kept, true.masks))


def true_outputs() -> AbstractContextManager[None]:
    """What the last block returns of the other tokens is that of this tick."""
    return _foreknown(lambda kept, true: _Known(kept, true, kept.masks))


@contextmanager
def _foreknown(known: Callable[[TokenState, TokenState], _Known]) -> Iterator[None]:
    forwarded = SomeTokens.forwarded

    def looked_ahead(self: SomeTokens, here: Any) -> Any:
        asked = here.asked
        plan = self._plan(asked, here)
        if plan is None:
            return (yield from forwarded(self, here))
        true = TokenState(StoreSetup(Hold(), Format(), here.branch.setup.timetable), {})
        with watched(FullPass(block_paths(asked.module), plan, true, here.step.tick)):
            asked.forward(*asked.call.args, **asked.call.kwargs)

        def some(paths: Any, plan: Any, state: TokenState, rows: Any, at: Any) -> RowPass:
            return RowPass(paths, plan, known(state, true), rows, at)  # type: ignore[arg-type]

        with patch.object(some_tokens, "RowPass", some):
            return (yield from forwarded(self, here))

    with patch.object(SomeTokens, "forwarded", looked_ahead):
        yield
