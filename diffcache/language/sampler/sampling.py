"""generate(): the sampler of masked-diffusion language models, the same with and without a cache."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from tqdm.auto import tqdm

from diffcache.language.attaching import caller_for, window_of
from diffcache.language.backbones.base import kept_usable
from diffcache.language.backbones.families import backbone_of
from diffcache.language.sampler.canvas import Canvas
from diffcache.language.sampler.decoding import Quota
from diffcache.language.sampler.options import (
    blocks_of,
    check,
    check_edit,
    check_sizes,
    decode_rule,
    eos_ids_of,
    mask_id_of,
)
from diffcache.language.sampler.writer import Writer, first_of
from diffcache.language.session import Caller

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
        block_length: how many tokens are written before the next are begun. None: 32; all of them with a window, which
            moves by itself, and where a quota does not come out even in blocks of 32.
        steps: model calls; None for one token each. Only without threshold and factor.
        threshold: commit what the model gives at least this probability, and one token in any case.
        factor: commit n tokens together while the n-th has a probability of 1 - factor / (n + 1) at least.
        window: commit none but the first so many masks. None: all of the block, or the method's own window.
        temperature: 0 takes the most likely token.
        remasking: which candidates come first, the surest or random ones (then without threshold and factor).
        mask_token_id, eos_token_id: None: as the model's configuration says.
        eos_early_stop: write nothing behind a text's first EOS, and stop when no text has anything left.
        seed: of temperature and random order; None for PyTorch's own state.
        progress: show a progress bar over tokens.
        callback: called after each model call with its number and the tokens [b, P + G]; tokens that it returns
            replace them: a changed token is computed anew, and where they hold the mask it is written again.

    Raises:
        ConfigError: texts that are no batch of tokens, options out of range, that exclude each other or do not divide,
            or a model without mask token.
        TargetError: a model of no known family, or a model call that says nothing about what may be written.
    """
    net = backbone_of(model)
    check(net, input_ids, attention_mask, temperature)
    check_sizes(gen_length=gen_length, block_length=block_length, steps=steps, window=window)
    rule = decode_rule(gen_length, steps, threshold, factor, remasking)
    canvas = Canvas.of_prompts(input_ids, gen_length, mask_id_of(model, mask_token_id))
    canvas.window = window_of(model, window)
    calls = gen_length if steps is None else steps
    blocks = blocks_of(canvas, block_length, calls if isinstance(rule, Quota) else None)
    eos = eos_ids_of(model, eos_token_id).to(input_ids.device)
    caller = caller_for(net, _real(input_ids, attention_mask, gen_length))
    generator = None if seed is None else torch.Generator(input_ids.device).manual_seed(seed)
    random = torch.rand(canvas.tokens.shape, generator=generator, device=input_ids.device)
    order = random if remasking == "random" else None
    writer = Writer(caller, canvas, rule, temperature, generator, order, eos if eos_early_stop else eos[:0])
    _write(writer, blocks, calls // len(blocks), callback, progress)
    return _finish(canvas, eos, eos_early_stop, caller)


def _write(
    writer: Writer, blocks: list[range], calls: int, callback: Callback | None, progress: bool
) -> None:
    """One block after the other; a quota makes so many calls for each."""
    canvas = writer.canvas
    total = len(canvas.tokens) * (canvas.length - canvas.prompt)
    with tqdm(total=total, unit="token", disable=not progress) as bar:
        for block in blocks:
            writer.enter(block, calls)
            while bool(canvas.candidates.any()):
                written = writer.step()
                if callback is not None:
                    _call_back(callback, writer)
                if progress:
                    bar.update(int(written.sum()))


def _real(input_ids: Tensor, attention_mask: Tensor | None, gen_length: int) -> Tensor:
    """Bool [b, P + G], False at padding."""
    given = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    return torch.cat([given, given.new_ones(len(given), gen_length)], dim=1).bool()


@kept_usable
def _call_back(callback: Callback, writer: Writer) -> None:
    tokens = writer.canvas.tokens
    edited = callback(writer.canvas.step, tokens.clone())
    if edited is not None:
        check_edit(edited, tokens)
        writer.replace(edited.to(tokens))


@kept_usable
def _finish(canvas: Canvas, eos: Tensor, stopped: bool, caller: Caller) -> Generation:
    limit = first_of(eos, canvas)
    sequences = canvas.tokens.clone()
    if stopped and len(eos):
        sequences = torch.where(canvas.positions > limit, eos[0], sequences)
    return Generation(sequences, limit[:, 0] - canvas.prompt, caller.ledger.calls)
