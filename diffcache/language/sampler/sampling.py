"""generate() and stream(): the sampler of masked-diffusion language models, the same with and without a cache.

The way of a call, with the files in diffcache/language:

    generate(...), stream(...)           sampler/sampling.py   checks the options (options.py); the loop over blocks (blocks.py)
      Writer.write(part)                 sampler/writer.py     for each model call: plan, ask, choose, commit
        Session.plan(canvas)             session.py            which rows; their number is read with the writer's own question
        Session.logits(canvas)           session.py            *** which rows: the method's, edited ones, those the walk wants ***
          config.rows(canvas)            recipes/              depends on the canvas alone (sampler/canvas.py)
          Walk(canvas, rows, full)       walks/                own_forward.py calls the model itself, base.py its layers;
                                                               attention_drift.py is Elastic-Cache's, value_drift.py dLLM-Cache's
            Net, Backbone                backbones/            the model, and its parts
            TokenKVCache                 cache.py              keys (rotated) and values, written in place
            LanguageReport               report.py             counts rows, operations and bytes
        Drawing(logits)                  sampler/drawing.py    tokens and their scores; noise.py
        Rule.commit(score)               sampler/decoding.py   quota, threshold, factor, chance
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from diffcache.language.attaching import model_caller, window_of
from diffcache.language.backbones.base import Net, outside_inference_mode
from diffcache.language.backbones.families import backbone_of
from diffcache.language.sampler.blocks import blocks_of, calls_of, parts_of
from diffcache.language.sampler.canvas import Canvas
from diffcache.language.sampler.checks import (
    check_callback,
    check_edit,
    check_mask,
    check_prompts,
    given_prompts,
    ids_of,
    mask_id_of,
    vocabulary_of,
)
from diffcache.language.sampler.drawing import Drawing
from diffcache.language.sampler.guidance import GuidedCaller
from diffcache.language.sampler.noise import Noise
from diffcache.language.sampler.options import DecodeOptions
from diffcache.language.sampler.writer import Editing, Part, Writer, first_eos
from diffcache.language.session import ModelCaller
from diffcache.schedulers.errors import ConfigError

Callback = Callable[[int, Tensor], Tensor | None]


@dataclass(frozen=True)
class Generation:
    """What was written.

    Attributes:
        sequences: int64 [b, P + G], prompts included; filled up with EOS after a text's first.
        lengths: int64 [b], tokens written before the first EOS.
        calls: model calls.
    """

    sequences: Tensor
    lengths: Tensor
    calls: int


@dataclass(frozen=True)
class Step:
    """The texts after a model call.

    Attributes:
        call: its number, from 1.
        sequences: int64 [b, P + G], prompts included; masks where nothing is written yet.
        written: bool [b, P + G], what this call has written or edited.
    """

    call: int
    sequences: Tensor
    written: Tensor


def generate(
    model: Any,
    input_ids: Tensor | Mapping[str, Tensor],
    attention_mask: Tensor | None = None,
    *,
    progress: bool = False,
    callback: Callback | None = None,
    **options: Any,
) -> Generation:
    """Writes tokens behind each prompt (LLaDA, arXiv 2502.09992, alg. 4 and 5): `generate(model, tokenizer(text, ...))`.

    Args:
        model: accelerated, or plain.
        input_ids: int64 [b, P], or all that a tokenizer returns.
        attention_mask: [b, P], 0 at padding, which is never attended; pad on the left.
        progress: show a progress bar over tokens.
        callback: called after each model call with its number and the tokens [b, P + G]. What it returns replaces them:
            a changed token is computed again, and a mask is written again.
        **options: of `DecodeOptions`: gen_length, block_length, steps, threshold, temperature, remasking, seed and so on.

    Raises:
        ConfigError: prompts that are no batch of the model's tokens; options that are out of range or exclude each other; a
            callback that is none, or returns something else than the model's tokens; a model without mask token.
        TargetError: a model of no known family; an accelerated one in training mode with dropout; a model call that says nothing about what
            may be written.
    """
    check_callback(callback)
    run = _Run.of(model, input_ids, attention_mask, options)
    for _ in _calls(run, callback, progress):
        pass
    return _finish(run)


def stream(
    model: Any,
    input_ids: Tensor | Mapping[str, Tensor],
    attention_mask: Tensor | None = None,
    *,
    progress: bool = False,
    callback: Callback | None = None,
    **options: Any,
) -> Generator[Step, None, Generation]:
    """`generate` call by call: yields a `Step` after each, and returns the `Generation`."""
    check_callback(callback)
    run = _Run.of(model, input_ids, attention_mask, options)
    for written in _calls(run, callback, progress):
        yield _shown(run, written)
    return _finish(run)


class _Run:
    """One run of the sampler.

    Args:
        net: the model's parts.
        prompts: int64 [b, P].
        mask: [b, P], 0 at padding; None for none.
        asked: how it writes.

    Attributes:
        parts: the blocks in order.
        writer: writes them.
        eos: tokens that end a text.
        length: positions of a text, prompt included.
        vocabulary: number of tokens that the model knows.
    """

    @classmethod
    @torch.inference_mode()
    def of(cls, model: Any, input_ids: Any, attention_mask: Any, options: dict[str, Any]) -> _Run:
        """A run as `generate` is asked for it."""
        options.pop("token_type_ids", None)  # some tokenizers return them; these models have none
        asked = DecodeOptions.of(**options)
        prompts, mask = given_prompts(input_ids, attention_mask)
        net = backbone_of(model)
        check_prompts(net, prompts, mask)
        return cls(net, prompts, mask, asked)

    def __init__(self, net: Net, prompts: Tensor, mask: Tensor | None, asked: DecodeOptions) -> None:
        model, device = net.model, prompts.device
        self.asked = asked
        self.eos = ids_of(model, "eos_token_id", asked.eos_token_id).to(device)
        self.length = prompts.shape[1] + asked.gen_length
        self.vocabulary = vocabulary_of(net)
        # The length of the blocks in which a model attends; None where it attends everything.
        own_blocks: int | None = net.block_attention
        block_length = own_blocks if asked.block_length is None else asked.block_length
        filled = 0 if own_blocks is None else -self.length % (block_length or own_blocks)
        mask_id = mask_id_of(model, asked.mask_token_id)
        check_mask(mask_id, self.eos)
        canvas = Canvas.of_prompts(
            prompts,
            asked.gen_length + filled,
            mask_id,
            window_of(model, asked.window),
        )
        canvas.attention_block = None if own_blocks is None else block_length
        canvas.reads_whole_block = asked.editing_threshold is not None
        blocks = self._blocks(canvas, block_length, net)
        calls = calls_of(blocks, asked.steps)
        self.parts = [self._part(block, own) for block, own in zip(blocks, calls, strict=True)]
        stops = self.eos if asked.eos_early_stop else self.eos[:0]
        editing = None
        if asked.editing_threshold is not None:
            editing = Editing(asked.editing_threshold, asked.max_post_steps)
        self.writer = Writer(
            self._caller(net, _real(canvas, mask)),
            canvas,
            self._drawing(model, canvas.mask_id),
            Noise.of(asked.seed, len(prompts), canvas.prompt, device),
            stops,
            asked.eos_early_stop == "block",
            asked.alg_temp or 0.0,
            editing,
        )

    def _blocks(self, canvas: Canvas, block_length: int | None, net: Net) -> list[range]:
        """What is written one after the other: blocks; parts of them where the model attends in blocks."""
        attended, parts = canvas.attention_block, self.asked.sub_block_length
        blocks = blocks_of(canvas, block_length, aligned=attended is not None)
        if attended is None:
            if parts is not None:
                raise ConfigError(
                    f"sub_block_length={parts} is for models that attend in blocks, and {type(net.model).__name__} does not: "
                    f"give block_length={parts}."
                )
            return blocks
        return [
            part
            for block in blocks
            for part in parts_of(block, parts, net.token_shift > 0 and block.start % attended == 0)
        ]

    def _part(self, block: range, calls: int) -> Part:
        """A block, for which a quota has so many calls."""
        size = len(block)
        if not self.asked.asks_quota:
            return Part(block, self.asked.rule(size, calls), None)
        return Part(block, self.asked.rule(size, calls), calls, self.asked.quotas(size, calls))

    def _caller(self, net: Net, real: Tensor) -> ModelCaller:
        if self.asked.cfg_scale == 0:
            return model_caller(net, real)
        return GuidedCaller(model_caller(net, torch.cat([real, real])), self.asked.cfg_scale)

    def _drawing(self, model: Any, mask_id: int) -> Drawing:
        asked, eos = self.asked, self.eos
        if (asked.logits_eos_inf or asked.confidence_eos_eot_inf) and not len(eos):
            raise ConfigError("the model's configuration names no EOS token: pass eos_token_id.")
        turn = ids_of(model, "eot_token_id", asked.eot_token_id).to(eos.device)
        forbidden = torch.cat([eos.new_tensor([mask_id]), eos[: len(eos) * asked.logits_eos_inf]])
        unsure = torch.cat([eos, turn]) if asked.confidence_eos_eot_inf else eos[:0]
        return Drawing(forbidden, unsure, asked.remasking, asked.temperature, asked.top_p, asked.top_k)


@torch.inference_mode()
def _calls(run: _Run, callback: Callback | None, progress: bool) -> Iterator[Tensor]:
    """Writes, and yields after each model call what was written, bool [b, S]."""
    writer, canvas = run.writer, run.writer.canvas
    total = len(canvas.tokens) * run.asked.gen_length
    with tqdm(total=total, unit="token", disable=not progress) as bar:
        for part in run.parts:
            for written in writer.write(part):
                if callback is not None:
                    _call_back(callback, run)
                if progress:
                    bar.update(int(written.sum()))
                yield written


def _real(canvas: Canvas, attention_mask: Tensor | None) -> Tensor:
    """Bool [b, S], False at padding."""
    real = torch.ones_like(canvas.tokens, dtype=torch.bool)
    if attention_mask is not None:
        real[:, : canvas.prompt] = attention_mask.bool()
    return real


@outside_inference_mode
def _call_back(callback: Callback, run: _Run) -> None:
    tokens = run.writer.canvas.tokens
    edited = callback(run.writer.canvas.step, tokens.clone())
    if edited is not None:
        check_edit(edited, tokens, run.vocabulary)
        run.writer.replace(edited.to(tokens))


@outside_inference_mode
def _shown(run: _Run, written: Tensor) -> Step:
    canvas, length = run.writer.canvas, run.length
    return Step(canvas.step, canvas.tokens[:, :length].clone(), written[:, :length].clone())


@outside_inference_mode
def _finish(run: _Run) -> Generation:
    canvas = run.writer.canvas
    sequences = canvas.tokens[:, : run.length].clone()
    limit = first_eos(run.eos, sequences, canvas.prompt)
    if run.asked.eos_early_stop and len(run.eos):
        sequences = torch.where(canvas.positions[: run.length] > limit, run.eos[0], sequences)
    return Generation(sequences, limit[:, 0] - canvas.prompt, run.writer.caller.report.calls)
