"""ProfilingDiT's calibration (arXiv 2504.03140): which blocks draw the foreground, told from attention."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from diffcache.attach.attach import detach
from diffcache.engine.observers import Observer, observed
from diffcache.host.compiled import each_uncompiled
from diffcache.host.components import denoisers_of
from diffcache.profiling.calibrating.attention import AttentionProbe, keys_of_picture
from diffcache.profiling.calibrating.foreground import Masks, on_tokens, otsu, saliency
from diffcache.profiling.recording.calling import Call, accelerated, frozen, watched_run
from diffcache.profiling.recording.pictures import pictures_of, rewound
from diffcache.recipes.profilingdit import ProfilingDiTConfig, ranges_of
from diffcache.recipes.uniform import UniformConfig
from diffcache.schedulers.errors import TargetError
from diffcache.schedulers.schedule import Schedule
from diffcache.schedulers.steps import Step

BACKGROUND = 0.6
"""Share of the blocks that is cached: 24 of 40 in the authors' list for HunyuanVideo (28 of 40 for Wan)."""


def calibrate(
    pipe: Any,
    calls: Sequence[Call],
    *,
    masks: Sequence[Masks] | Masks | None = None,
    background: float = BACKGROUND,
    interval: int = 12,
    shrink_to: int = 2,
) -> Schedule:
    """Makes a ProfilingDiT schedule for runs like these.

    Args:
        pipe: a pipeline with one denoiser; it is plain afterwards.
        calls: keyword arguments of each calibration call, all with the same number of steps.
        masks: foreground of the pictures: one [N, H, W] (videos [N, F, H, W]) for each call, or a segmenter that is called
            with the pictures of each call's full run. None: the saliency of the clean latent.
        background: share of the blocks to cache, those whose attention covers least of the foreground.
        interval, shrink_to: ticks between refreshes, from the first to the last.

    Returns:
        A schedule that replays like any other: `accelerate(pipe, schedule)`; `measured["foreground"]` has each block's score.

    Raises:
        TargetError: no block attends over the picture's tokens, or a call has not exactly one denoising loop.
        ConfigError: a mask cannot be laid over the tokens.
    """
    scores = foreground_scores(pipe, calls, masks)
    chosen = sorted(scores, key=lambda block: scores[block])[: round(background * len(scores))]
    config = ProfilingDiTConfig(blocks=_ranges(scores, chosen), interval=interval, shrink_to=shrink_to)
    schedule = frozen(pipe, calls[0], config)
    rounded = {block: round(score, 4) for block, score in scores.items()}
    return replace(schedule, measured={**schedule.measured, "foreground": rounded})


def foreground_scores(pipe: Any, calls: Sequence[Call], masks: Any = None) -> dict[str, float]:
    """R = |high and foreground| / |foreground| of each block, mean over calls, rows, ticks and branches, in order of blocks.

    `high` are the tokens of the picture that receive more attention than the mean of them. Errors as for `calibrate`.
    """
    detach(pipe)
    denoiser, *others = each_uncompiled(denoisers_of(pipe)).values()
    if others:
        raise TargetError(
            "a pipeline with one denoiser can be profiled; this one has several: name the blocks yourself."
        )
    found: dict[str, list[float]] = {}
    for i, call in enumerate(calls):
        with _first_call(denoiser) as example:
            pictures, latent = _full_run(pipe, call)
        keys = keys_of_picture(denoiser, *example)
        probe = AttentionProbe(keys)
        with accelerated(pipe, UniformConfig(interval=1, site="block")):
            try:
                watched_run(pipe, call, probe)
            finally:
                probe.close()
        mask = masks[i] if isinstance(masks, (list, tuple)) else masks
        field = saliency(latent) if mask is None else mask(pictures) if callable(mask) else mask
        for block, received in probe.received.items():
            found.setdefault(block, []).extend(
                _covered(high, field, salient=mask is None) for high in received
            )
    if not found:
        raise TargetError(
            "no block was seen to attend over the picture's tokens: name the blocks yourself (blocks=)."
        )
    return {block: sum(values) / len(values) for block, values in found.items()}


def _covered(received: Tensor, field: Tensor, *, salient: bool) -> float:
    """|high and foreground| / |foreground|, over all rows; rows of a field repeat where guidance doubles the batch."""
    values = on_tokens(field.cpu(), received.shape[1])
    foreground = otsu(values) if salient else values > 0.5
    foreground = foreground.repeat(len(received) // len(foreground), 1)
    high = received > received.mean(1, keepdim=True)
    return float((high & foreground).sum() / foreground.sum().clamp_min(1))


def _ranges(scores: dict[str, float], chosen: Sequence[str]) -> tuple[str, ...]:
    """The chosen blocks as places, those that follow one another as one."""
    lists = dict.fromkeys(block.rpartition(".")[0] for block in scores)
    members = {
        name: tuple(sorted(int(b.rpartition(".")[2]) for b in chosen if b.rpartition(".")[0] == name))
        for name in lists
    }
    return tuple(place for name, indices in members.items() for place in ranges_of(name, indices))


class _Latents(Observer):
    """Keeps what entered the denoiser last: there is least noise in it."""

    latent: Tensor

    def computed(
        self, denoiser: str, step: Step, features: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> None:
        self.latent = (outputs[0] - features[0]).cpu()


def _full_run(pipe: Any, call: Call) -> tuple[Tensor, Tensor]:
    """Pictures, and the latent at the end of the loop."""
    latents = _Latents()
    with accelerated(pipe, UniformConfig(interval=1)), observed(latents):
        pictures = pictures_of(pipe(**rewound(call)))
    return pictures, latents.latent


@contextmanager
def _first_call(denoiser: nn.Module) -> Iterator[list[Any]]:
    """What the denoiser is given first: args and kwargs."""
    given: list[Any] = []

    def note(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        given[:] = given or [args, kwargs]

    handle = denoiser.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield given
    finally:
        handle.remove()
