"""generate(): the sampler of masked-diffusion language models, the same with and without a cache."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from tqdm.auto import tqdm

from diffcache.language.attaching import model_caller, window_of
from diffcache.language.backbones.base import outside_inference_mode
from diffcache.language.backbones.families import backbone_of
from diffcache.language.sampler.canvas import Canvas
from diffcache.language.sampler.decoding import Quota
from diffcache.language.sampler.options import (
    DecodeOptions,
    blocks_of,
    check_edit,
    check_prompts,
    eos_ids_of,
    mask_id_of,
)
from diffcache.language.sampler.writer import Sampling, Writer, first_eos
from diffcache.language.session import ModelCaller

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


@torch.inference_mode()
def generate(
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    *,
    gen_length: int = 128,
    block_length: int | None = None,
    steps: int | None = None,
    threshold: float | None = None,
    factor: float | None = None,
    window: int | None = None,
    temperature: float = 0.0,
    remasking: Literal["low_confidence", "random"] = "low_confidence",
    mask_token_id: int | None = None,
    eos_token_id: int | None = None,
    eos_early_stop: bool = True,
    seed: int | None = None,
    progress: bool = False,
    callback: Callback | None = None,
) -> Generation:
    """Writes `gen_length` tokens behind each prompt (LLaDA, arXiv 2502.09992, alg. 4 and 5).

    The decode rule is one of three, whatever the cache: a quota of `gen_length / steps` tokens for each call, all
    candidates above a `threshold`, or Fast-dLLM's `factor`.

    Args:
        model: accelerated, or plain.
        input_ids: int64 [b, P].
        attention_mask: [b, P], 0 at padding, which is never attended; pad on the left.
        block_length: how many tokens are written before the next ones are begun. None: 32; all of them where there is a
            window, and where a quota does not come out even in blocks of 32.
        steps: model calls; None for one token each. Only without threshold and factor.
        threshold: commit tokens that have at least this probability, and one in any case.
        factor: commit n tokens together while the n-th has a probability of at least 1 - factor / (n + 1).
        window: commit only the first so many masks. None: all of the block, or the method's own window.
        temperature: 0 takes the most likely token.
        remasking: which candidates come first: the most confident ones, or random ones (without threshold and factor).
        mask_token_id, eos_token_id: None: as the model's configuration says.
        eos_early_stop: write nothing behind a text's first EOS, and stop when no text has anything left.
        seed: of temperature and random order; None for PyTorch's own random state.
        progress: show a progress bar over tokens.
        callback: called after each model call with its number and the tokens [b, P + G]. What it returns replaces them:
            a changed token is computed again, and a mask is written again.

    Raises:
        ConfigError: prompts that are no batch of tokens; options that are out of range, exclude each other or do not come
            out even; a model without mask token.
        TargetError: a model of no known family, or a model call that says nothing about what may be written.
    """
    options = DecodeOptions(
        gen_length=gen_length,
        block_length=block_length,
        steps=steps,
        threshold=threshold,
        factor=factor,
        window=window,
        temperature=temperature,
        remasking=remasking,
        mask_token_id=mask_token_id,
        eos_token_id=eos_token_id,
        eos_early_stop=eos_early_stop,
        seed=seed,
    )
    return _generate(model, input_ids, attention_mask, options, callback, progress)


def _generate(
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    options: DecodeOptions,
    callback: Callback | None,
    progress: bool,
) -> Generation:
    net, rule = backbone_of(model), options.rule
    check_prompts(net, input_ids, attention_mask)
    mask_id, eos = mask_id_of(model, options.mask_token_id), eos_ids_of(model, options.eos_token_id)
    canvas = Canvas.of_prompts(input_ids, options.gen_length, mask_id, window_of(model, options.window))
    blocks = blocks_of(canvas, options.block_length, options.calls if isinstance(rule, Quota) else None)
    eos = eos.to(input_ids.device)
    caller = model_caller(net, _real(input_ids, attention_mask, options.gen_length))
    stops = eos if options.eos_early_stop else eos[:0]
    writer = Writer(caller, canvas, rule, _sampling(canvas, options), stops)
    total = len(canvas.tokens) * (canvas.length - canvas.prompt)
    with tqdm(total=total, unit="token", disable=not progress) as bar:
        for block in blocks:
            for written in writer.write(block, options.calls // len(blocks)):
                if callback is not None:
                    _call_back(callback, writer)
                if progress:
                    bar.update(int(written.sum()))
    return _finish(canvas, eos, options.eos_early_stop, caller)


def _sampling(canvas: Canvas, options: DecodeOptions) -> Sampling:
    device = canvas.tokens.device
    generator = None if options.seed is None else torch.Generator(device).manual_seed(options.seed)
    order = torch.rand(canvas.tokens.shape, generator=generator, device=device)
    return Sampling(options.temperature, generator, order if options.remasking == "random" else None)


def _real(input_ids: Tensor, attention_mask: Tensor | None, gen_length: int) -> Tensor:
    """Bool [b, P + G], False at padding."""
    given = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    return torch.cat([given, given.new_ones(len(given), gen_length)], dim=1).bool()


@outside_inference_mode
def _call_back(callback: Callback, writer: Writer) -> None:
    tokens = writer.canvas.tokens
    edited = callback(writer.canvas.step, tokens.clone())
    if edited is not None:
        check_edit(edited, tokens)
        writer.replace(edited.to(tokens))


@outside_inference_mode
def _finish(canvas: Canvas, eos: Tensor, stopped: bool, caller: ModelCaller) -> Generation:
    limit = first_eos(eos, canvas)
    sequences = canvas.tokens.clone()
    if stopped and len(eos):
        sequences = torch.where(canvas.positions > limit, eos[0], sequences)
    return Generation(sequences, limit[:, 0] - canvas.prompt, caller.report.calls)
