"""What `generate` is given besides its options: prompts, what a callback returns, and special tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from diffcache.language.backbones.base import Net
from diffcache.schedulers.errors import ConfigError


def given_prompts(input_ids: Any, attention_mask: Any) -> tuple[Any, Any]:
    """Prompts and mask, from what a tokenizer returns or from two tensors.

    Raises:
        ConfigError: a tokenizer's result without tokens, or with a second mask beside it.
    """
    if not isinstance(input_ids, Mapping):
        return input_ids, attention_mask
    if "input_ids" not in input_ids:
        raise ConfigError(
            f"the prompts have no input_ids, only {', '.join(input_ids)}: pass what the tokenizer returns."
        )
    if attention_mask is not None and "attention_mask" in input_ids:
        raise ConfigError("there are two attention masks: pass the tokenizer's result alone.")
    return input_ids["input_ids"], input_ids.get("attention_mask", attention_mask)


def check_prompts(net: Net, input_ids: Tensor, attention_mask: Tensor | None) -> None:
    """Checks that the prompts are a batch of tokens that the model can continue.

    Raises:
        ConfigError: they are no tokens [b, P], too few, or not in the vocabulary; the mask has another shape, or leaves a gap
            before the answer.
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
    vocabulary = vocabulary_of(net)
    if (stranger := _outside(input_ids, vocabulary)) is not None:
        raise ConfigError(
            f"input_ids hold the token {stranger}, which is not in the vocabulary of {vocabulary} tokens: pass those of the "
            "model's own tokenizer."
        )


def vocabulary_of(net: Net) -> int:
    """How many tokens a model may be given: some have logits of fewer."""
    return max(net.vocabulary, int(net.model.config.vocab_size))


def check_callback(callback: Any) -> None:
    """Refuses what cannot be called after each model call, with ConfigError."""
    if callback is not None and not callable(callback):
        raise ConfigError(
            f"callback={callback!r}: give a function of the call's number and the tokens, which returns tokens or None."
        )


def check_edit(edited: Tensor, tokens: Tensor, vocabulary: int) -> None:
    """Checks that what a callback returned can replace `tokens` [b, S].

    Raises:
        ConfigError: these are no tokens of the vocabulary, or of another shape.
    """
    if not isinstance(edited, Tensor) or edited.shape != tokens.shape or edited.is_floating_point():
        found = (
            f"{edited.dtype} {list(edited.shape)}" if isinstance(edited, Tensor) else type(edited).__name__
        )
        raise ConfigError(
            f"the callback returned {found}: return all tokens, {tokens.dtype} {list(tokens.shape)}, or None."
        )
    if (stranger := _outside(edited, vocabulary)) is not None:
        raise ConfigError(
            f"the callback returned the token {stranger}, which is not in the vocabulary of {vocabulary} tokens: return tokens of the "
            "model, or None."
        )


def _outside(tokens: Tensor, vocabulary: int) -> int | None:
    """A token [b, S] that is not in a vocabulary of so many; None where all are."""
    if not tokens.numel():
        return None
    least, most = torch.stack(tokens.aminmax()).tolist()
    return next((int(token) for token in (least, most) if not 0 <= token < vocabulary), None)


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


def check_mask(mask_id: int, eos: Tensor) -> None:
    """Refuses a mask token that is one of those that end a text (int64 [0 or more]), with ConfigError."""
    if mask_id in eos.tolist():
        raise ConfigError(
            f"mask_token_id={mask_id} ends texts (eos_token_id), which would be over before they are written: pass the token that the "
            "model was trained to fill in."
        )


def ids_of(model: Any, name: str, given: int | None) -> Tensor:
    """Special tokens such as "eos_token_id", as given or as the model's configuration says, int64 [0 or more]."""
    found = getattr(model.config, name, None) if given is None else given
    many = [] if found is None else found if isinstance(found, list) else [found]
    return torch.tensor(many, dtype=torch.int64)
