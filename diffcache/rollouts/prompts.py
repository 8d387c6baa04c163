"""The prompts of a video: which text holds from which frame on."""

from collections.abc import Mapping
from numbers import Integral
from typing import Any

from diffcache.schedulers.errors import ConfigError


def check_text(name: str, text: Any) -> None:
    """Refuses what is neither a text nor a list of texts."""
    each = text if isinstance(text, (list, tuple)) else [text]
    if not each or not all(isinstance(one, str) for one in each):
        raise ConfigError(f"{name}={text!r}: give a text, or a list with one for each video.")


def texts_by_frame(prompt: Any, factor: int, chunk_frames: int, latent_frames: int) -> dict[int, Any]:
    """Texts by the latent frame from which they hold.

    Args:
        factor: pixel frames of a latent frame.
        chunk_frames, latent_frames: of a chunk, and of the video.

    Raises:
        ConfigError: what holds is no text; none holds at frame 0, or one never would.
    """
    if not isinstance(prompt, Mapping):
        check_text("prompt", prompt)
        return {0: prompt}
    if 0 not in prompt:
        raise ConfigError("no prompt holds at frame 0: give {0: ...} as well.")
    for frame, text in prompt.items():
        if not isinstance(frame, Integral) or frame < 0:
            raise ConfigError(f"there is a prompt of frame {frame!r}: give whole numbers from 0.")
        check_text(f"prompt[{frame}]", text)
    frames = sorted(prompt)
    step, chunks = factor * chunk_frames, -(-latent_frames // chunk_frames)
    begun = {-(-frame // step): frame for frame in frames}
    for frame in frames:
        if begun[-(-frame // step)] != frame or -(-frame // step) >= chunks:
            raise ConfigError(
                f"the prompt of frame {frame} would never hold: a prompt holds from the next chunk on, chunks begin every {step} frames, "
                f"and the last at frame {(chunks - 1) * step}: give each prompt a chunk of its own."
            )
    return {-(-frame // factor): prompt[frame] for frame in frames}


def text_at(texts: Mapping[int, Any], frame: int, frames: int) -> Any:
    """The text that begins in the chunk before `frame`, or in this chunk's first frame; None where none does."""
    begun = [text for start, text in texts.items() if frame - frames < start <= frame]
    return begun[-1] if begun else None
