"""Videos as VBench wants to find them: `{prompt}-{take}.mp4` in one flat folder."""

from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

from diffcache.evals.errors import EvaluationError
from diffcache.evals.media import eight_bit

FRAMES_PER_SECOND = 8
LONGEST = 255 - len("-00.mp4")
"""Of a file name on common file systems, in bytes."""


def export(videos: Iterable[tuple[str, int, Tensor]], folder: Path) -> Path:
    """Writes videos for VBench; returns the folder.

    Args:
        videos: prompt, take (0, 1, ...) and video [F, 3, H, W] in 0..1.
        folder: made if need be; what is in it already is overwritten by name.

    Raises:
        EvaluationError: a sample is no video, a prompt cannot be a file's name, no encoder is installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for prompt, take, video in videos:
        if video.ndim != 4:
            raise EvaluationError("VBench judges videos: evaluate a video pipeline with it.")
        _write(video, folder / file_name(prompt, take))
    return folder


def file_name(prompt: str, take: int) -> str:
    """Name of a take of a prompt.

    Raises:
        EvaluationError: the prompt cannot be a file's name.
    """
    if "/" in prompt or "\0" in prompt or len(prompt.encode()) > LONGEST:
        raise EvaluationError(
            f"VBench names files after prompts, and this one cannot be one: {prompt[:80]!r}."
        )
    return f"{prompt}-{take}.mp4"


def _write(video: Tensor, path: Path) -> None:
    import imageio.v3 as iio

    frames = eight_bit(video).movedim(1, -1).numpy()
    try:
        # A macro block of 1 keeps the size as it is; a constant rate factor of 0 loses nothing but colour resolution.
        iio.imwrite(
            path,
            frames,
            plugin="FFMPEG",
            fps=FRAMES_PER_SECOND,
            macro_block_size=1,
            output_params=["-crf", "0"],
        )
    except ImportError as error:
        raise EvaluationError("writing mp4 needs an encoder: pip install imageio-ffmpeg.") from error
