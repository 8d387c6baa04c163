"""Samplers as published, written down plainly and apart from diffcache: one text at a time, in float64, with Python loops.

Each takes `logits(tokens [1, S]) -> [S, V]` and returns the tokens. None draws the mask; ties go to the earlier position.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Logits = Callable[[Tensor], Tensor]
MASK = 1


def without_mask(logits: Tensor) -> Tensor:
    logits = logits.double().clone()
    logits[:, MASK] = -math.inf
    return logits


def log_odds(row: Tensor, token: int) -> float:
    """log(p / (1 - p)): says which of two probabilities is larger also where both round to 1."""
    others = row.clone()
    others[token] = -math.inf
    return float(row[token] - others.logsumexp(0))


def probability(row: Tensor, token: int) -> float:
    return 1 / (1 + math.exp(min(700.0, -log_odds(row, token))))


def surest(scores: dict[int, float], count: int) -> list[int]:
    return sorted(scores, key=lambda at: (-scores[at], at))[:count]


def even(total: int, steps: int) -> list[int]:
    return [total // steps + (step < total % steps) for step in range(steps)]


def llada(
    logits: Logits,
    prompt: Tensor,
    gen_length: int,
    block_length: int,
    steps: int,
    *,
    cfg_scale: float = 0.0,
    temperature: float = 0.0,
    uniform: Callable[[int, int], Tensor] | None = None,
    logits_eos_inf: int | None = None,
    confidence_eos_eot_inf: tuple[int, ...] = (),
) -> Tensor:
    """LLaDA's generate.py with low-confidence remasking. `uniform(call, position)`: float64 numbers [V] of the Gumbel noise."""
    size = prompt.shape[1]
    x = torch.cat([prompt, torch.full((1, gen_length), MASK)], dim=1)
    blocks = range(size, size + gen_length, block_length)
    call = 0
    for start in blocks:
        stop = min(start + block_length, size + gen_length)
        for count in even(stop - start, steps * (stop - start) // gen_length):
            out = logits(x).double()
            if cfg_scale:
                bare = x.clone()
                bare[:, :size] = MASK
                without = logits(bare).double()
                out = without + (cfg_scale + 1) * (out - without)
            out = without_mask(out)
            if logits_eos_inf is not None:
                out[:, logits_eos_inf] = -math.inf
            scores, tokens = {}, {}
            for at in range(start, stop):
                if x[0, at] != MASK:
                    continue
                noisy = out[at]
                if temperature:
                    assert uniform is not None
                    noisy = out[at].exp() / (-uniform(call, at).log()) ** temperature
                tokens[at] = int(noisy.argmax())
                row = out[at].clone()
                if tokens[at] in confidence_eos_eot_inf:
                    scores[at] = -math.inf
                    continue
                row[list(confidence_eos_eot_inf)] = -math.inf
                scores[at] = log_odds(row, tokens[at])
            for at in surest(scores, count):
                x[0, at] = tokens[at]
            call += 1
    return x


def fast_dllm(
    logits: Logits,
    prompt: Tensor,
    gen_length: int,
    block_length: int,
    *,
    threshold: float | None,
    factor: float | None,
) -> Tensor:
    """Fast-dLLM's parallel decoding without a cache."""
    size = prompt.shape[1]
    x = torch.cat([prompt, torch.full((1, gen_length), MASK)], dim=1)
    for start in range(size, size + gen_length, block_length):
        block = range(start, min(start + block_length, size + gen_length))
        while any(x[0, at] == MASK for at in block):
            out = without_mask(logits(x))
            tokens = {at: int(out[at].argmax()) for at in block if x[0, at] == MASK}
            scores = {at: log_odds(out[at], token) for at, token in tokens.items()}
            order = surest(scores, len(scores))
            chosen = order[:1]
            for n, at in enumerate(order[1:], start=2):
                p = probability(out[at], tokens[at])
                least = threshold if threshold is not None else 1 - (factor or 0.0) / (n + 1)
                if p < least:
                    break
                chosen.append(at)
            for at in chosen:
                x[0, at] = tokens[at]
    return x


def fast_dllm_v2(
    logits: Logits, prompt: Tensor, gen_length: int, block_length: int, part: int, threshold: float
) -> Tensor:
    """Fast-dLLM v2's own sampler without its block cache: the first token of a block by the row before it, then its parts.

    `logits` sees tokens up to the block's end, under a mask that is triangular in blocks. Row i predicts token i + 1.
    """
    size = prompt.shape[1]
    total = -(-(size + gen_length) // block_length) * block_length
    x = prompt
    for start in range(size // block_length * block_length, total, block_length):
        if x.shape[1] == start:
            following = without_mask(logits(x))[-1].argmax()
            x = torch.cat([x, following.view(1, 1)], dim=1)
        x = torch.cat([x, torch.full((1, start + block_length - x.shape[1]), MASK)], dim=1)
        for first in range(start, start + block_length, part):
            while masked := [at for at in range(first, first + part) if x[0, at] == MASK]:
                out = without_mask(logits(x))
                tokens = {at: int(out[at - 1].argmax()) for at in masked}
                scores = {at: log_odds(out[at - 1], token) for at, token in tokens.items()}
                sure = [at for at in masked if probability(out[at - 1], tokens[at]) > threshold]
                for at in {*sure, *surest(scores, 1)}:
                    x[0, at] = tokens[at]
    return x[:, : size + gen_length]


def dream(
    logits: Logits,
    prompt: Tensor,
    gen_length: int,
    steps: int,
    alg: str,
    *,
    eps: float = 1e-3,
    top_p: float | None = None,
    top_k: int | None = None,
    uniform: Callable[[int, int], float] | None = None,
) -> Tensor:
    """Dream's diffusion_generate at temperature 0. `uniform(call, position)` decides for "origin"."""
    size = prompt.shape[1]
    x = torch.cat([prompt, torch.full((1, gen_length), MASK)], dim=1)
    times = torch.linspace(1, eps, steps + 1)
    for step in range(steps):
        out = without_mask(logits(x))
        left = [at for at in range(size, size + gen_length) if x[0, at] == MASK]
        last = step == steps - 1
        share = 1 - times[step + 1] / times[step]
        tokens, scores = {}, {}
        for at in left:
            row = kept(out[at], top_p, top_k)
            tokens[at] = int(row.argmax())
            scores[at] = dream_score(row, alg)
        if alg == "origin":
            assert uniform is not None
            chosen = [at for at in left if last or uniform(step, at) < float(share)]
        else:
            count = len(left) if last else int(torch.tensor(float(len(left))) * share)
            chosen = surest(scores, count)
        for at in chosen:
            x[0, at] = tokens[at]
    return x


def kept(row: Tensor, top_p: float | None, top_k: int | None) -> Tensor:
    """The likeliest tokens' logits: as many as have top_p together, and no more than top_k."""
    order = row.argsort(descending=True, stable=True).tolist()
    allowed = len(order)
    if top_p is not None:
        p, total, allowed = row.softmax(0).tolist(), 0.0, 0
        while total <= top_p and allowed < len(order):
            total += p[order[allowed]]
            allowed += 1
    allowed = min(allowed, top_k or allowed)
    out = torch.full_like(row, -math.inf)
    out[order[:allowed]] = row[order[:allowed]]
    return out


def dream_score(row: Tensor, alg: str) -> float:
    """A number that grows with Dream's confidence and does not saturate in float64."""
    below = (row.max() - row[row > -math.inf]).sort().values[1:]  # of all but the first
    if not len(below):
        return math.inf
    rest = float((-below).exp().sum())
    if alg == "entropy":
        return -math.log(math.log1p(rest) + float((below * (-below).exp()).sum()) / (1 + rest))
    if alg == "topk_margin":
        return math.log1p(rest) - math.log(rest + math.exp(-below[0]))
    return -math.log(rest)


def llada2(
    logits: Logits,
    prompt: Tensor,
    gen_length: int,
    block_length: int,
    threshold: float,
    editing_threshold: float | None,
    *,
    max_post_steps: int = 16,
    num_to_transfer: int = 1,
    eos: int | None = None,
) -> Tensor:
    """LLaDA2's own generate, with LLaDA2.1's edits: blocks are counted from position 0, and the last one is whole.

    `logits` sees tokens up to the block's end, under a mask that is triangular in blocks.
    """
    size = prompt.shape[1]
    total = -(-(size + gen_length) // block_length) * block_length
    x = torch.cat([prompt, torch.full((1, total - size), MASK)], dim=1)
    for start in range(size // block_length * block_length, total, block_length):
        block, post = range(start, start + block_length), 0
        while True:
            masked = [at for at in block if x[0, at] == MASK]
            post += not masked
            if post > max_post_steps:
                break
            out = without_mask(logits(x[:, : block.stop]))
            tokens = {at: int(out[at].argmax()) for at in block}
            sure = {at: probability(out[at], tokens[at]) for at in block}
            odds = {at: log_odds(out[at], tokens[at]) for at in block}
            high = [at for at in masked if sure[at] > threshold]
            commit = (
                high
                if len(high) >= num_to_transfer
                else surest({at: odds[at] for at in masked}, num_to_transfer)
            )
            edits = []
            if editing_threshold is not None:
                written = [at for at in block if at >= size and at not in masked]
                edits = [at for at in written if sure[at] > editing_threshold and tokens[at] != x[0, at]]
            for at in (*commit, *edits):
                x[0, at] = tokens[at]
            if not masked and not edits:
                break
        if eos is not None and bool((x[0, size : start + block_length] == eos).any()):
            break
    return x[:, : size + gen_length]
