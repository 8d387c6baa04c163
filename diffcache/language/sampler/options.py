"""What a user asks of `generate`: checked, and made into what the sampler works with."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from diffcache.language.backbones.base import Net
from diffcache.language.sampler.canvas import Canvas
from diffcache.language.sampler.decoding import Factor, Quota, Rule, Threshold
from diffcache.schedulers.errors import ConfigError

BLOCK_LENGTH = 32
"""Of `generate` where nothing else is asked for, as in Fast-dLLM's published runs (arXiv 2505.22618)."""


@dataclass(frozen=True)
class DecodeOptions:
    """How `generate` writes: its options by the same names, with the same meaning.

    Raises:
        ConfigError: a size that is no whole number above 0, a negative temperature, an option that is no finite number, more than one decode rule, or an order that the rule cannot
            follow.
    """

    gen_length: int
    block_length: int | None
    steps: int | None
    threshold: float | None
    factor: float | None
    window: int | None
    temperature: float
    remasking: str
    mask_token_id: int | None
    eos_token_id: int | None
    eos_early_stop: bool
    seed: int | None

    def __post_init__(self) -> None:
        for name in ("gen_length", "block_length", "steps", "window"):
            size = getattr(self, name)
            if size is not None and not (_is_whole(size) and size >= 1):
                raise ConfigError(f"{name} must be at least 1 and a whole number, not {size!r}.")
        for name in ("threshold", "factor", "temperature"):
            number = getattr(self, name)
            if not (_is_finite(number) or (number is None and name != "temperature")):
                raise ConfigError(f"{name} must be a finite number, not {number!r}.")
        if self.temperature < 0:
            raise ConfigError(f"temperature must be at least 0, not {self.temperature!r}.")
        for name in ("seed", "mask_token_id", "eos_token_id"):
            given = getattr(self, name)
            if given is not None and not _is_whole(given):
                raise ConfigError(f"{name} must be a whole number, not {given!r}.")
        given = [name for name in ("steps", "threshold", "factor") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)} are different decode rules: give one of them.")
        if self.remasking not in ("low_confidence", "random"):
            raise ConfigError(f'remasking must be "low_confidence" or "random", not {self.remasking!r}.')
        if self.remasking == "random" and given and self.steps is None:
            raise ConfigError(
                f'{given[0]} asks for confidence, which remasking="random" ignores: leave one of them out.'
            )

    @property
    def calls(self) -> int:
        """Model calls of a quota: one for each token where `steps` are not given."""
        return self.gen_length if self.steps is None else self.steps

    @property
    def rule(self) -> Rule:
        """The decode rule that was asked for; without any a quota."""
        if self.threshold is not None:
            return Threshold(self.threshold)
        if self.factor is not None:
            return Factor(self.factor)
        return Quota(-(-self.gen_length // self.calls))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def check_prompts(net: Net, input_ids: Tensor, attention_mask: Tensor | None) -> None:
    """Checks that the prompts are a batch of tokens that the model can continue.

    Raises:
        ConfigError: they are no tokens [b, P], or too few; the mask has another shape, or leaves a gap before the answer.
    """
    for name, tensor in (("input_ids", input_ids), ("attention_mask", attention_mask)):
        is_left_out = tensor is None and name == "attention_mask"
        if not isinstance(tensor, Tensor) and not is_left_out:
            raise ConfigError(
                f"{name} must be a tensor, not a {type(tensor).__name__}: pass the tokenizer's, made with "
                'return_tensors="pt".'
            )
    if input_ids.ndim != 2 or input_ids.is_floating_point():
        raise ConfigError(
            f"input_ids must be tokens [b, P], not {input_ids.dtype} {list(input_ids.shape)}: pass the tokenizer's "
            'input_ids, made with return_tensors="pt".'
        )
    if attention_mask is not None and attention_mask.shape != input_ids.shape:
        raise ConfigError(
            f"attention_mask has the shape {list(attention_mask.shape)} and input_ids {list(input_ids.shape)}: pass the "
            "mask of the prompts alone."
        )
    if attention_mask is not None and bool((attention_mask.int().diff(dim=1) < 0).any()):
        raise ConfigError(
            "attention_mask has padding behind a prompt, where the answer follows: pad on the left (the tokenizer's "
            'padding_side="left").'
        )
    if input_ids.shape[1] < net.token_shift:
        raise ConfigError(
            f"{type(net.model).__name__} predicts each token from the one before it: give prompts of one token at least."
        )


def check_edit(edited: Tensor, tokens: Tensor) -> None:
    """Checks that what a callback returned can replace `tokens` [b, S].

    Raises:
        ConfigError: these are no tokens, or of another shape.
    """
    if not isinstance(edited, Tensor) or edited.shape != tokens.shape or edited.is_floating_point():
        found = (
            f"{edited.dtype} {list(edited.shape)}" if isinstance(edited, Tensor) else type(edited).__name__
        )
        raise ConfigError(
            f"the callback returned {found}: return all tokens, {tokens.dtype} {list(tokens.shape)}, or None."
        )


def blocks_of(canvas: Canvas, block_length: int | None, steps: int | None) -> list[range]:
    """The blocks in order. The last may be shorter, unless a quota needs blocks of one size.

    Args:
        block_length: None: `BLOCK_LENGTH`; the whole answer where there is a window, or where a quota does not come out
            even in such blocks.
        steps: model calls of a quota; None for another rule.

    Raises:
        ConfigError: with a quota, blocks that do not divide the answer, or steps that the blocks do not divide.
    """
    size = canvas.length - canvas.prompt
    if block_length is None:
        in_blocks = canvas.window is None and _even(size, BLOCK_LENGTH, steps)
        block_length = BLOCK_LENGTH if in_blocks else size
    if not _even(size, block_length, steps):
        raise ConfigError(
            f"a quota needs blocks and calls that come out even, and gen_length={size}, block_length={block_length}, "
            f"steps={steps} do not: choose a block_length that divides gen_length and a multiple of the number of "
            "blocks as steps, or decode with threshold=0.9."
        )
    starts = range(canvas.prompt, canvas.length, block_length)
    return [range(start, min(start + block_length, canvas.length)) for start in starts]


def _even(size: int, block: int, steps: int | None) -> bool:
    """Whether a quota of `steps` calls is the same in all blocks; True for any other rule (None)."""
    return steps is None or (size % block == 0 and steps % (size // block) == 0)


def mask_id_of(model: Any, given: int | None) -> int:
    """The mask token.

    Raises:
        ConfigError: it is neither given nor in the model's configuration, or it is not in the vocabulary.
    """
    found = getattr(model.config, "mask_token_id", None) if given is None else given
    if found is None:
        raise ConfigError(
            "the model's configuration names no mask token: pass mask_token_id (LLaDA's is 126336)."
        )
    if not 0 <= found < model.config.vocab_size:
        raise ConfigError(
            f"mask_token_id={found} is not in the vocabulary of {model.config.vocab_size} tokens."
        )
    return int(found)


def eos_ids_of(model: Any, given: int | None) -> Tensor:
    """Tokens that end a text, int64 [0 or more]."""
    found = getattr(model.config, "eos_token_id", None) if given is None else given
    many = [] if found is None else found if isinstance(found, list) else [found]
    return torch.tensor(many, dtype=torch.int64)
