"""Diffusers' LLaDA2Pipeline: its model calls, which see whole texts, go through a session."""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import Tensor

from diffcache.hooks.attachments import swapped
from diffcache.host.callbacks import hidden_from_callbacks
from diffcache.language.sampler.canvas import Canvas
from diffcache.language.session import Session

StartRun = Callable[[Tensor], Session]
"""Makes the session of a run over texts of `real` [b, C], False at padding."""

_run: ContextVar["PipelineRun | None"] = ContextVar("diffcache_language_run", default=None)


class PipelineRun:
    """One call of the pipeline. It writes block by block, and never shows its model what follows the block.

    Each of its model calls passes all tokens up to the block's end; the logits of the block are all that it reads.

    Args:
        model: the pipeline's.
        start_run: called at the first model call, which shows the batch.
        block_length, gen_length: tokens of a block, and of the answer.
        mask_id: the token that stands for 'not written yet'.
    """

    def __init__(
        self, model: Any, start_run: StartRun, block_length: int, gen_length: int, mask_id: int
    ) -> None:
        self.model = model
        self._start_run = start_run
        self._block_length = block_length
        self._gen_length = gen_length
        self._mask_id = mask_id
        self._started: tuple[Session, Canvas] | None = None

    def logits(self, tokens: Tensor, attention_mask: Tensor) -> Tensor:
        """Logits of the block [b, B, V] for tokens [b, S] up to its end; `attention_mask` [b, S] is 0 at padding."""
        session, canvas = self._started = self._started or self._start(tokens)
        stop = tokens.shape[1]
        finished = tokens[:, : canvas.block.start]
        canvas.edited = bool(session.cache.dirty(finished).any())  # by the pipeline's callback
        grown = stop != canvas.length
        canvas.rewrite(tokens, torch.full_like(canvas.limit, stop))
        if grown:
            canvas.enter(range(stop - self._block_length, stop))
            session.cache.mark_padding(attention_mask.bool())
        logits, _ = session.logits(canvas)
        canvas.advance()
        return logits

    def _start(self, tokens: Tensor) -> tuple[Session, Canvas]:
        """The session and the canvas of the first call's tokens [b, S], which end with the first block."""
        stop, blocks = tokens.shape[1], -(-self._gen_length // self._block_length)
        real = tokens.new_ones(len(tokens), stop + blocks * self._block_length, dtype=torch.bool)
        canvas = Canvas.of_prompts(tokens[:, : stop - self._block_length], 0, self._mask_id)
        canvas.reads_whole_block = True
        session = self._start_run(real)
        if session.net.block_attention is not None:
            canvas.attention_block = self._block_length
        return session, canvas


def is_language_pipeline(target: object) -> bool:
    import diffusers

    kind = getattr(diffusers, "LLaDA2Pipeline", None)  # older versions have none
    return kind is not None and isinstance(target, kind)


def pipeline_members(base: type, start_run: Callable[[Any], StartRun | None]) -> dict[str, Any]:
    """What the swapped pipeline class overrides. `start_run(pipe)` starts a run through the cache, or is None for a plain run."""

    @functools.wraps(base.__call__)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        forward = partial(base.__call__, self)
        start = start_run(self)
        if start is None:
            return forward(*args, **kwargs)
        asked = inspect.signature(forward).bind(*args, **kwargs)
        asked.apply_defaults()
        block, mask = asked.arguments["block_length"], asked.arguments["mask_token_id"]
        run = PipelineRun(
            self.model,
            start,
            self.scheduler.config.block_length if block is None else block,
            asked.arguments["gen_length"],
            self.mask_token_id if mask is None else mask,
        )
        args, kwargs = hidden_from_callbacks(forward, args, kwargs, partial(_running, None))
        with swapped([self.model], _model_members), _running(run):
            return forward(*args, **kwargs)

    return {"__call__": __call__}


@contextmanager
def _running(run: PipelineRun | None) -> Iterator[None]:
    """Inside, the model's calls belong to this run; None: to no run."""
    token = _run.set(run)
    try:
        yield
    finally:
        _run.reset(token)


def _model_members(base: type) -> dict[str, Any]:
    """What the swapped class of a pipeline's model overrides during a run: its calls go through the session."""

    @functools.wraps(base.__call__)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = _run.get()
        if run is None or run.model is not self:
            return base.__call__(self, *args, **kwargs)
        from transformers.modeling_outputs import CausalLMOutput

        with _running(None):  # what the session asks the model itself
            return CausalLMOutput(logits=run.logits(args[0], kwargs["attention_mask"]))

    return {"__call__": __call__}
