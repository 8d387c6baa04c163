"""Largest logit, runner-up, normaliser and entropy of each row: first of chunks of the vocabulary, then of all chunks."""

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 4096


@triton.jit
def chunk_kernel(
    logits,  # [n, vocabulary]
    rows,  # [m]
    tops,  # [m, chunks], like the five below
    seconds,
    tokens,
    sums,  # of exp(logit - top)
    moments,  # of exp(logit - top) * (logit - top)
    rests,  # of exp(logit - second), without the top itself
    vocabulary,
    stride,
    HAS_ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    m, chunk = tl.program_id(0), tl.program_id(1)
    row = tl.load(rows + m) if HAS_ROWS else m
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    minus_inf = float("-inf")
    x = tl.load(
        logits + tl.cast(row, tl.int64) * stride + token, mask=token < vocabulary, other=minus_inf
    ).to(tl.float32)
    top, at = tl.max(x, axis=0, return_indices=True)
    others = tl.where(token == chunk * CHUNK + at, minus_inf, x)
    second = tl.max(others, axis=0)
    rest = tl.exp(others - tl.where(second == minus_inf, 0.0, second))
    below = x - tl.where(top == minus_inf, 0.0, top)  # -inf - -inf is NaN
    weight = tl.exp(below)
    entry = m * tl.num_programs(1) + chunk
    tl.store(tops + entry, top)
    tl.store(seconds + entry, second)
    tl.store(tokens + entry, tl.minimum(chunk * CHUNK + at, vocabulary - 1))
    tl.store(sums + entry, tl.sum(weight, axis=0))
    tl.store(moments + entry, tl.sum(tl.where(weight == 0.0, 0.0, weight * below), axis=0))
    tl.store(rests + entry, tl.sum(rest, axis=0))


@triton.jit
def union_kernel(
    tops,  # [m, chunks], like the five below
    seconds,
    tokens,
    sums,
    moments,
    rests,
    token,  # [m], like the four below
    probability,
    runner_up,
    entropy,
    odds,
    chunks,
    BLOCK: tl.constexpr,
):
    m = tl.program_id(0)
    chunk = tl.arange(0, BLOCK)
    inside = chunk < chunks
    entry = m * chunks + chunk
    minus_inf = float("-inf")
    tops_here = tl.load(tops + entry, mask=inside, other=minus_inf)
    seconds_here = tl.load(seconds + entry, mask=inside, other=minus_inf)
    top, winner = tl.max(tops_here, axis=0, return_indices=True)
    rival = tl.max(tl.where(chunk == winner, seconds_here, tops_here), axis=0)
    below = tops_here - tl.where(top == minus_inf, 0.0, top)
    scale = tl.where(inside, tl.exp(below), 0.0)
    sums_here = tl.load(sums + entry, mask=inside, other=0.0)
    moments_here = tl.load(moments + entry, mask=inside, other=0.0)
    total = tl.sum(sums_here * scale, axis=0)
    shifted = tl.where(scale == 0.0, 0.0, scale * (moments_here + below * sums_here))
    rests_here = tl.load(rests + entry, mask=inside, other=0.0)
    finite = tl.where(rival == minus_inf, 0.0, rival)
    others = tl.where(
        chunk == winner, rests_here * tl.exp(seconds_here - finite), sums_here * tl.exp(tops_here - finite)
    )
    rest = tl.sum(tl.where(inside, others, 0.0), axis=0)
    not_finite = (top - top) + (total - total)  # NaN, else 0
    tl.store(odds + m, top - finite - tl.log(rest) + not_finite)
    tl.store(token + m, tl.load(tokens + m * chunks + winner).to(tl.int64))
    tl.store(probability + m, tl.exp(top - top) / total)  # NaN where all are -inf
    tl.store(runner_up + m, tl.exp(rival - top) / total)
    tl.store(entropy + m, tl.log(total) - tl.sum(shifted, axis=0) / total)


def top_two(logits: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    token, probability, runner_up, entropy, _ = _in_one_pass(logits, rows)
    return token, probability, runner_up, entropy


def likeliest(logits: Tensor) -> tuple[Tensor, Tensor]:
    token, *_, odds = _in_one_pass(logits, None)
    return token, odds


def _in_one_pass(logits: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Token, its probability, the runner-up's, entropy and the token's log-odds, [m] each."""
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    vocabulary = logits.shape[1]
    m = len(logits) if rows is None else len(rows)
    chunks = int(triton.cdiv(vocabulary, CHUNK))
    partials = logits.new_empty(5, m, chunks, dtype=torch.float32)
    tokens = logits.new_empty(m, chunks, dtype=torch.int32)
    tops, seconds, sums, moments, rests = partials.unbind()
    chunk_kernel[(m, chunks)](
        logits,
        tokens if rows is None else rows,
        tops,
        seconds,
        tokens,
        sums,
        moments,
        rests,
        vocabulary,
        logits.stride(0),
        HAS_ROWS=rows is not None,
        CHUNK=CHUNK,
        num_warps=8,
    )
    token = logits.new_empty(m, dtype=torch.int64)
    probability, runner_up, entropy, odds = (logits.new_empty(m, dtype=torch.float32) for _ in range(4))
    union_kernel[(m,)](
        tops,
        seconds,
        tokens,
        sums,
        moments,
        rests,
        token,
        probability,
        runner_up,
        entropy,
        odds,
        chunks,
        BLOCK=int(triton.next_power_of_2(chunks)),
    )
    return token, probability, runner_up, entropy, odds
