"""A chunk's call, prepared: where the chunk stands, and what its attentions go through."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from diffcache.rollouts.attending import Attended, attended, placed
from diffcache.rollouts.book import Book
from diffcache.rollouts.learning import Learned
from diffcache.rollouts.policies import Chunk


@dataclass(frozen=True)
class Prepared:
    """What a chunk's call needs.

    Attributes:
        learned: how the denoiser rolls out.
        chunk: that is computed.
        start: place of its first frame.
    """

    learned: Learned
    chunk: Chunk
    start: int

    @contextmanager
    def attended(self, attend: Attended) -> Iterator[None]:
        """Inside, the denoiser's calls stand at the chunk's place, and their attentions are computed by a function."""
        learned = self.learned
        with placed(learned.rotary, self.start, self.chunk.frames), attended(learned.modules, attend):
            yield

    def book(self, tokens: int) -> Book:
        """Of so many tokens of the chunk, evenly over its frames."""
        chunk = self.chunk
        frame = torch.arange(tokens) * chunk.frames // tokens
        return Book.of_chunk(chunk.frame + frame, self.start + frame, self.learned.form.shape.batch)
