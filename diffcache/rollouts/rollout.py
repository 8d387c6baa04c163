"""Long video, chunk after chunk: `with rollout(denoiser, "deep-sink") as video:`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from diffcache.host.compiled import uncompiled
from diffcache.rollouts.memory import RolloutMemory, Wanted
from diffcache.rollouts.policies import RolloutPolicy, policy_of
from diffcache.rollouts.video import Rollout
from diffcache.schedulers.errors import ConfigError, TargetError


@contextmanager
def rollout(
    denoiser: nn.Module,
    policy: RolloutPolicy | str = "deep-sink",
    *,
    cache_dtype: str | None = None,
    cache_device: str | None = None,
    max_cache_bytes: int | None = None,
    memory: RolloutMemory | None = None,
    **options: Any,
) -> Iterator[Rollout]:
    """Autoregressive video with a stock video transformer: each chunk of frames sees the keys and values of those before it.

        with torch.no_grad(), rollout(transformer, window=21) as video:
            for latents in noise.split(3, dim=2):
                for t, dt in steps:
                    latents = latents + dt * video(latents, t, prompt, return_dict=False)[0]
                video.write(latents, zero, prompt)  # the clean pass: from now on it is the past

    The denoiser is called as always, through `video`. Only `video.write` adds to the past. A chunk that was not written may be begun
    again. What `accelerate` attached to the denoiser works inside `denoising_run`, one for each chunk; writing always computes.

    Args:
        denoiser: a video transformer whose latents are [batch, channels, frames, height, width], causal by training. That its
            frames meet in attention alone is proved at the first chunk, which costs about seven calls.
        policy: what is kept: "everything", "rolling", "sink", "deep-sink", "participative" (docs/video.md), or a `RolloutPolicy`.
        cache_dtype: "bfloat16", "float16", or eight bits with a scale for each token and head ("int8", "float8"). None: as computed.
        cache_device: "cpu" keeps it in host memory, from where the next layer's is fetched while one is computed.
        max_cache_bytes: how much may be kept on the device. Where it would be more, fewer bits are used, then host memory.
        memory: the bytes of several rollouts together, instead of `max_cache_bytes`.
        **options: the policy's own (`window=21, sink=10`), in latent frames.

    Raises:
        ConfigError: an unknown policy or option, or a memory that is none; at the first chunk also bytes for which there is no room.
        TargetError: at the first chunk: this denoiser cannot roll out; the message says why.

    However the block is left, nothing stays in memory, and nothing on the denoiser.
    """
    if not isinstance(denoiser, nn.Module):
        raise TargetError(
            f"a {type(denoiser).__name__} is no denoiser: give a pipeline's own, such as pipe.transformer."
        )
    if memory is not None and not isinstance(memory, RolloutMemory):
        raise ConfigError(f"memory={memory!r}: give a RolloutMemory, or max_cache_bytes= instead.")
    if memory is not None and max_cache_bytes is not None:
        raise ConfigError("memory= has a bound of its own: leave out max_cache_bytes=.")
    wanted = Wanted(cache_dtype, cache_device)
    video = Rollout(
        uncompiled(denoiser), policy_of(policy, options), wanted, memory or RolloutMemory(max_cache_bytes)
    )
    try:
        yield video
    finally:
        video.close()
