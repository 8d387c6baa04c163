"""Which token a row of the logits predicts, seen from how well a model fills in a text."""

import logging
from typing import Any

import torch
from torch import Tensor

from diffcache.language.backbones.families import backbone_of
from diffcache.schedulers.errors import TargetError

logger = logging.getLogger("diffcache")

EVERY, LEAST = 7, 8
"""One token of so many is masked, and so many must be."""

SURE = 5.0
"""Standard errors between the two answers. Trained models had 8 to 20 with 20 masked tokens of a text of their own."""

TEXT = (
    "The sun rises in the east and sets in the west. A week has seven days, and a year has twelve months. Water freezes at zero "
    "degrees and boils at one hundred degrees. One, two, three, four, five, six, seven, eight, nine, ten. The capital of France "
    "is Paris, the capital of Italy is Rome, and the capital of Spain is Madrid. Once upon a time there was a king who lived in "
    "a castle with his wife and his three daughters."
)
"""What `load_language_model` asks a model to fill in."""


@torch.no_grad()
def token_shift_of(model: Any, tokens: Tensor, mask_id: int) -> int | None:
    """Compares at masked tokens how likely the true one is in its own row and in the row before. One model call.

    Args:
        tokens: texts that the model finds likely, int64 [b, S], without padding.
        mask_id: the mask token.

    Returns:
        0 where row i predicts token i, 1 where it predicts token i + 1; None where these texts do not tell: too short, or
        not like what the model was trained on. Random weights never tell.

    Raises:
        TargetError: a model of no known family.
    """
    net = backbone_of(model)
    masked = torch.arange(tokens.shape[1], device=tokens.device) % EVERY == EVERY - 1
    logits = net.call(tokens.masked_fill(masked, mask_id), None, net.block_attention).float()
    likely = logits.log_softmax(dim=-1)
    here = likely[:, 1:].gather(2, tokens[:, 1:, None])[..., 0]
    before = likely[:, :-1].gather(2, tokens[:, 1:, None])[..., 0]
    lead = (here - before)[:, masked[1:]].flatten()
    if len(lead) < LEAST:
        return None
    sure = float(lead.mean() / (lead.std() / len(lead) ** 0.5).clamp(min=1e-9))
    return None if abs(sure) < SURE else int(sure < 0)


def probe_token_shift(model: Any, tokenizer: Any) -> None:
    """Sets `model.config.token_shift` where the model fills in `TEXT` clearly better with the other one, and says so."""
    mask_id = getattr(model.config, "mask_token_id", None)
    mask_id = tokenizer.mask_token_id if mask_id is None else mask_id
    try:
        known = backbone_of(model).token_shift
    except TargetError:
        return  # which `accelerate` says
    if mask_id is None:
        return
    tokens = tokenizer(TEXT, return_tensors="pt")["input_ids"].to(model.device)
    found = token_shift_of(model, tokens, mask_id)
    if found is not None and found != known:
        logger.warning(
            "%s predicts token i%s in row i, as its logits of a text show: token_shift=%d is set. Pass token_shift=%d to "
            "load_language_model if that is wrong.",
            type(model).__name__,
            " + 1" * found,
            found,
            known,
        )
        model.config.token_shift = found
