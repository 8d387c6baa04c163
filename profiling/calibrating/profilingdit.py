"""Calibrates ProfilingDiT (arXiv 2504.03140): finds the blocks that draw the foreground by their attention."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from diffcache.attach.attach import detach
from diffcache.discovery.site_names import ranges_of
from diffcache.engine.observers import Observer, observed
from diffcache.host.compiled import each_uncompiled
from diffcache.host.components import denoisers_of
from diffcache.profiling.calibrating.attention import AttentionProbe, keys_of_picture
from diffcache.profiling.calibrating.foreground import on_tokens, otsu, saliency
from diffcache.profiling.recording.calling import Call, accelerated, calls_hash, refuse_no_calls, watched_run
from diffcache.profiling.recording.frozen import frozen
from diffcache.profiling.recording.journal import Entry, journal, key_of
from diffcache.profiling.recording.pictures import rewound
from diffcache.recipes.profilingdit import ProfilingDiTConfig
from diffcache.recipes.uniform import UniformConfig
from diffcache.schedulers.errors import ConfigError, TargetError
from diffcache.schedulers.schedule import Schedule
from diffcache.schedulers.steps import Step

BACKGROUND = 0.6
"""Share of the blocks to cache: 24 of 40 in the authors' list for HunyuanVideo; their list for Wan has 28 of 40."""

SHRINK_TO = 2
"""Distance between computed ticks at the end of the run: the last gap of the authors' list for HunyuanVideo."""


def calibrate_profilingdit(
    pipe: Any,
    calls: Sequence[Call],
    *,
    background: float = BACKGROUND,
    interval: int = 12,
) -> Schedule:
    """Makes a ProfilingDiT schedule for runs like these.

    The foreground is where the clean latent is salient. Published: what SAM2 finds in the predicted noise.

    Args:
        pipe: a pipeline with one denoiser; it is plain afterwards.
        calls: keyword arguments of each calibration call, all with the same number of steps.
        background: share of the blocks to cache, one at least. These are the blocks whose attention covers least of the foreground.
        interval: the first distance between computed ticks; it shrinks to `SHRINK_TO`.

    Returns:
        A schedule that replays like any other: `accelerate(pipe, schedule)`. `measured["foreground"]` has each block's score.

    Raises:
        TargetError: no block attends to the picture's tokens, or a call had no denoising loop, or several.
        ConfigError: the latent cannot be laid over the tokens; there is no call; or `background` is no share.
    """
    if not 0 < background <= 1:
        raise ConfigError(
            f"background={background!r}: give the share of the blocks to cache, above 0 and at most 1."
        )
    scores = foreground_scores(pipe, calls)
    count = max(round(background * len(scores)), 1)
    chosen = sorted(scores, key=lambda block: scores[block])[:count]
    config = ProfilingDiTConfig(blocks=_ranges(scores, chosen), interval=interval, shrink_to=SHRINK_TO)
    schedule = frozen(pipe, calls[0], config)
    rounded = {block: round(score, 4) for block, score in scores.items()}
    return replace(schedule, measured={**schedule.measured, "foreground": rounded})


def foreground_scores(pipe: Any, calls: Sequence[Call]) -> dict[str, float]:
    """The share of the foreground that each block attends to: |high and foreground| / |foreground|, in the order of blocks.

    `high` are the picture's tokens that receive more attention than their mean. Scores are means over calls, rows, ticks and
    branches. Arguments and errors are those of `calibrate_profilingdit`.
    """
    refuse_no_calls(calls)
    detach(pipe)
    denoiser, *others = each_uncompiled(denoisers_of(pipe)).values()
    if others:
        raise TargetError(
            "a pipeline with one denoiser can be profiled; this one has several: name the blocks yourself."
        )
    found: dict[str, list[float]] = {}
    for call in calls:
        hashed = calls_hash([call])
        full = journal().entry(key_of("latent and keys", call=hashed), partial(_seen, pipe, denoiser, call))
        probe = partial(_covered_by, pipe, call, full)
        for block, shares in journal().entry(key_of("foreground", call=hashed), probe).facts.items():
            found.setdefault(block, []).extend(shares)
    if not found:
        raise TargetError("no block attends to the picture's tokens: name the blocks yourself (blocks=).")
    return {block: sum(values) / len(values) for block, values in found.items()}


def _seen(pipe: Any, denoiser: nn.Module, call: Call) -> Entry:
    """The last latent of a call's full run, and which keys of the attentions belong to the picture."""
    with _first_call(denoiser) as example:
        latent = _full_run(pipe, call)
    keys = {str(number): belongs for number, belongs in keys_of_picture(denoiser, *example).items()}
    return Entry({"latent": latent, **keys}, {"keys": list(keys)})


def _covered_by(pipe: Any, call: Call, full: Entry) -> Entry:
    """By block, the share of the foreground that it attends to, of each row, tick and branch of one call."""
    field = saliency(full.tensors["latent"])
    probe = AttentionProbe({int(number): full.tensors[number] for number in full.facts["keys"]})
    with accelerated(pipe, UniformConfig(interval=1, site="block")), probe:
        watched_run(pipe, call, probe)
    covered = {
        block: [_covered(high, field) for high in received] for block, received in probe.received.items()
    }
    return Entry({}, covered)


def _covered(received: Tensor, field: Tensor) -> float:
    """|high and foreground| / |foreground|, over all rows. The field is repeated where guidance doubles the batch."""
    foreground = otsu(on_tokens(field.cpu(), received.shape[1]))
    foreground = foreground.repeat(len(received) // len(foreground), 1)
    high = received > received.mean(1, keepdim=True)
    return float((high & foreground).sum() / foreground.sum().clamp_min(1))


def _ranges(scores: dict[str, float], chosen: Sequence[str]) -> tuple[str, ...]:
    """The chosen blocks as sites; consecutive blocks are one site."""
    lists = dict.fromkeys(block.rpartition(".")[0] for block in scores)
    members = {
        name: tuple(sorted(int(b.rpartition(".")[2]) for b in chosen if b.rpartition(".")[0] == name))
        for name in lists
    }
    return tuple(site for name, indices in members.items() for site in ranges_of(name, indices))


class _LastLatent(Observer):
    """Keeps the latent that the denoiser got last, which has the least noise."""

    def __init__(self) -> None:
        self.latent = torch.empty(0)

    def computed(
        self, denoiser: str, step: Step, features: Sequence[Tensor], outputs: Sequence[Tensor], stream: int
    ) -> None:
        self.latent = (outputs[0] - features[0]).cpu()  # the feature is the residual v - x


def _full_run(pipe: Any, call: Call) -> Tensor:
    """The latent at the end of a call's loop."""
    last = _LastLatent()
    with accelerated(pipe, UniformConfig(interval=1)), observed(last):
        pipe(**rewound(call))
    return last.latent


@contextmanager
def _first_call(denoiser: nn.Module) -> Iterator[list[Any]]:
    """A list that will hold the args and kwargs of the denoiser's first call."""
    given: list[Any] = []

    def note(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        given[:] = given or [args, kwargs]

    handle = denoiser.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield given
    finally:
        handle.remove()
