"""Video files as VBench expects them: `{prompt}-{number}.mp4` in one folder."""

from collections import Counter
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from torch import Tensor

from diffcache.evals.errors import EvaluationError
from diffcache.evals.metrics.media import eight_bit

FRAMES_PER_SECOND = 8
LONGEST = 255 - len("-00.mp4")
"""Bytes of a prompt that leave room for the rest of a file name, of which common file systems allow 255."""


def export(videos: Iterable[tuple[str, Tensor]], folder: Path) -> Path:
    """Writes videos for VBench; returns the folder.

    Args:
        videos: file name and video [F, 3, H, W] in 0..1.
        folder: created if it is missing; files of the same names are overwritten.

    Raises:
        EvaluationError: a sample is no video.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, video in videos:
        if video.ndim != 4:
            raise EvaluationError("VBench judges videos: evaluate a video pipeline with it.")
        _write(video, folder / name)
    return folder


def check_encoder() -> None:
    """Raises EvaluationError if nothing is installed that writes mp4."""
    if find_spec("imageio_ffmpeg") is None:
        raise EvaluationError("writing mp4 needs an encoder: pip install imageio-ffmpeg.")


def file_names(prompts: Iterable[str]) -> list[str]:
    """A file name for each prompt, with the number of times that the prompt has come before.

    Raises:
        EvaluationError: a prompt cannot be a file name.
    """
    before: Counter[str] = Counter()
    names = []
    for prompt in prompts:
        names.append(_file_name(prompt, before[prompt]))
        before[prompt] += 1
    return names


def _file_name(prompt: str, number: int) -> str:
    if "/" in prompt or "\0" in prompt or len(prompt.encode()) > LONGEST:
        raise EvaluationError(
            f"VBench names files after prompts, and this one cannot be one: {prompt[:80]!r}."
        )
    return f"{prompt}-{number}.mp4"


def _write(video: Tensor, path: Path) -> None:
    import imageio.v3 as iio

    # A macro block size of 1 keeps the picture size; a constant rate factor of 0 loses colour resolution only.
    iio.imwrite(
        path,
        eight_bit(video).movedim(1, -1).numpy(),
        plugin="FFMPEG",
        fps=FRAMES_PER_SECOND,
        macro_block_size=1,
        output_params=["-crf", "0"],
    )
