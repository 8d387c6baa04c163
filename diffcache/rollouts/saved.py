"""A rollout's past in a folder: one safetensors file, which is checked before anything of it is used."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from diffcache.kernels.quantize import Quantized
from diffcache.rollouts.book import Book
from diffcache.rollouts.history import LayerHistory, TokenBlocks, TokenShape
from diffcache.rollouts.policies import RolloutPolicy
from diffcache.schedulers.errors import ScheduleError
from diffcache.schedulers.whole_files import written_whole
from diffcache.store.formats import Format, values_of
from diffcache.store.placement import Feature, Kept

FILE = "rollout.safetensors"
VERSION = 2
"""Files of version 1 do not say how high and wide their chunks were."""


@dataclass(frozen=True)
class Past:
    """A rollout's.

    Attributes:
        frames: that were written.
        layers: the past of each attention.
        sizes: batch, height and width of the chunks; empty before the first.
    """

    frames: int
    layers: list[LayerHistory]
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Saved:
    """What a file holds: its description, and its tensors by name."""

    facts: Mapping[str, Any]
    tensors: Mapping[str, Tensor]


def save(past: Past, policy: RolloutPolicy, folder: Path) -> None:
    """Writes a past. A file that is there is replaced at once or not at all."""
    tensors: dict[str, Tensor] = {}
    layers = []
    for i, layer in enumerate(past.layers):
        layers.append({"rows": layer.rows.lengths, "queries": layer.queries.lengths})
        for name, book in (("book", layer.book), ("query_book", layer.query_book)):
            tensors |= {f"{i}.{name}.{part}": value.contiguous() for part, value in vars(book).items()}
        for name, rows in (("rows", layer.rows), ("queries", layer.queries)):
            tensors |= {f"{i}.{name}.{key}": value for key, value in _stored(rows)}
    facts = {
        "version": VERSION,
        "policy": _described(policy),
        "frames": past.frames,
        "sizes": past.sizes,
        "shape": _shape_facts(past.layers[0].shape) if past.layers else None,
        "dtype": str(past.layers[0].rows.format.dtype) if past.layers else None,
        "layers": layers,
    }
    folder.mkdir(parents=True, exist_ok=True)
    with written_whole(folder / FILE) as part:
        save_file(tensors, part, metadata={"diffcache": json.dumps(facts)})


def load(folder: Path, policy: RolloutPolicy) -> Saved:
    """Reads what `save` wrote.

    Raises:
        ScheduleError: nothing readable is there, or it was written with another policy or version.
    """
    path = folder / FILE
    try:
        with safe_open(path, "pt") as file:
            facts = json.loads((file.metadata() or {})["diffcache"])
            tensors = {name: file.get_tensor(name) for name in list(file.keys())}
    except (OSError, SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise ScheduleError(f"{path} holds no rollout that can be read ({error}): save it again.") from error
    if facts.get("version") != VERSION:
        raise ScheduleError(
            f"{path} has version {facts.get('version')!r}, this library reads {VERSION}: save it again."
        )
    if facts["policy"] != _described(policy):
        raise ScheduleError(
            f"{path} was saved with {facts['policy']}, and this rollout has {_described(policy)}: use the same policy."
        )
    return Saved(facts, tensors)


def restored(
    saved: Saved, format: Format, shape: TokenShape, layers: int, sizes: tuple[int, ...]
) -> list[LayerHistory]:
    """The past of each attention that was saved, for a denoiser and chunks of these sizes.

    Raises:
        ScheduleError: it belongs to another denoiser, batch or size, or is stored in another format.
    """
    facts = saved.facts
    if facts["shape"] is None:
        return [LayerHistory(format, shape) for _ in range(layers)]
    given = {"layers": len(facts["layers"]), **{name: facts[name] for name in ("sizes", "shape", "dtype")}}
    wanted = {
        "layers": layers,
        "sizes": list(sizes),
        "shape": _shape_facts(shape),
        "dtype": str(format.dtype),
    }
    for name, value in wanted.items():
        if given[name] != value:
            raise ScheduleError(
                f"the saved rollout has {name} {given[name]}, and this one {value}: use the same denoiser, batch, size and cache_dtype."
            )
    return [_layer(saved, i, format, shape) for i in range(layers)]


def _layer(saved: Saved, i: int, format: Format, shape: TokenShape) -> LayerHistory:
    layer = LayerHistory(format, shape)
    lengths = saved.facts["layers"][i]
    try:
        layer.book, layer.query_book = (
            Book(*(saved.tensors[f"{i}.{name}.{part}"] for part in ("frame", "place", "mass")))
            for name in ("book", "query_book")
        )
        _fill(layer.rows, _of(saved, f"{i}.rows", shape.device), lengths["rows"])
        _fill(layer.queries, _of(saved, f"{i}.queries", shape.device), lengths["queries"])
    except KeyError as error:
        raise ScheduleError(f"the saved rollout has no tensor {error}: save it again.") from error
    if layer.book.tokens != layer.rows.tokens or layer.query_book.tokens != layer.queries.tokens:
        raise ScheduleError(
            f"the saved rollout's attention {i} has another number of tokens than its book: save it again."
        )
    return layer


def _stored(rows: TokenBlocks) -> list[tuple[str, Tensor]]:
    """The tensors of all blocks, in host memory."""
    found = []
    for block, feature in enumerate(rows.blocks):
        for i, kept in enumerate(feature.tensors):
            parts = kept._asdict() if isinstance(kept, Quantized) else {"values": values_of(kept)}
            found += [(f"{block}.{i}.{name}", part.cpu().contiguous()) for name, part in parts.items()]
    return found


def _of(saved: Saved, name: str, device: torch.device) -> dict[str, Tensor]:
    """The tensors of some rows, on the device that computes."""
    start = f"{name}."
    return {
        key.removeprefix(start): value.to(device)
        for key, value in saved.tensors.items()
        if key.startswith(start)
    }


def _fill(rows: TokenBlocks, tensors: Mapping[str, Tensor], lengths: Sequence[int]) -> None:
    """Puts the stored blocks back.

    Raises:
        KeyError: one is missing.
    """
    for block in range(len(lengths)):
        kept: list[Kept] = []
        for i in range(len(rows.channels)):
            values, scales = tensors[f"{block}.{i}.values"], tensors.get(f"{block}.{i}.scales")
            kept.append(values if scales is None else Quantized(values, scales))
        rows.blocks.append(rows.format.memory.put(Feature(0, tuple(kept))))
    rows.lengths = list(lengths)


def _described(policy: RolloutPolicy) -> Any:
    """Its name and options, as they are read from a file again: a tuple is a list there."""
    return json.loads(json.dumps({"name": policy.name, **asdict(policy)}))


def _shape_facts(shape: TokenShape) -> dict[str, Any]:
    """All but the device, which may be another one when it goes on."""
    return {
        "batch": shape.batch,
        "heads": shape.heads,
        "channels": [shape.channels, shape.value_channels],
        "dtype": str(shape.dtype),
    }
