"""Largest logit of each row and the sum of all others' exponentials: first of chunks of the vocabulary, then of all chunks."""

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 4096


@triton.jit
def chunk_kernel(
    logits,  # [n, vocabulary]
    tops,  # [n, chunks], like the four below
    seconds,
    tokens,
    sums,  # of exp(logit - top)
    rests,  # of exp(logit - second), without the top itself
    vocabulary,
    stride,
    CHUNK: tl.constexpr,
):
    n, chunk = tl.program_id(0), tl.program_id(1)
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    minus_inf = float("-inf")
    x = tl.load(logits + tl.cast(n, tl.int64) * stride + token, mask=token < vocabulary, other=minus_inf).to(
        tl.float32
    )
    top, at = tl.max(x, axis=0, return_indices=True)
    others = tl.where(token == chunk * CHUNK + at, minus_inf, x)
    second = tl.max(others, axis=0)
    rest = tl.exp(others - tl.where(second == minus_inf, 0.0, second))
    weight = tl.exp(x - tl.where(top == minus_inf, 0.0, top))  # -inf - -inf is NaN
    entry = n * tl.num_programs(1) + chunk
    tl.store(tops + entry, top)
    tl.store(seconds + entry, second)
    tl.store(tokens + entry, tl.minimum(chunk * CHUNK + at, vocabulary - 1))
    tl.store(sums + entry, tl.sum(weight, axis=0))
    tl.store(rests + entry, tl.sum(rest, axis=0))


@triton.jit
def union_kernel(
    tops,  # [n, chunks], like the four below
    seconds,
    tokens,
    sums,
    rests,
    token,  # [n], like the one below
    odds,
    chunks,
    BLOCK: tl.constexpr,
):
    n = tl.program_id(0)
    chunk = tl.arange(0, BLOCK)
    inside = chunk < chunks
    entry = n * chunks + chunk
    minus_inf = float("-inf")
    tops_here = tl.load(tops + entry, mask=inside, other=minus_inf)
    seconds_here = tl.load(seconds + entry, mask=inside, other=minus_inf)
    top, winner = tl.max(tops_here, axis=0, return_indices=True)
    rival = tl.max(tl.where(chunk == winner, seconds_here, tops_here), axis=0)
    sums_here = tl.load(sums + entry, mask=inside, other=0.0)
    rests_here = tl.load(rests + entry, mask=inside, other=0.0)
    finite = tl.where(rival == minus_inf, 0.0, rival)
    others = tl.where(
        chunk == winner, rests_here * tl.exp(seconds_here - finite), sums_here * tl.exp(tops_here - finite)
    )
    rest = tl.sum(tl.where(inside, others, 0.0), axis=0)
    total = tl.sum(sums_here, axis=0)
    not_finite = (top - top) + (total - total)  # NaN, else 0
    tl.store(odds + n, top - finite - tl.log(rest) + not_finite)
    tl.store(token + n, tl.load(tokens + n * chunks + winner).to(tl.int64))


def likeliest(logits: Tensor) -> tuple[Tensor, Tensor]:
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    rows, vocabulary = logits.shape
    chunks = int(triton.cdiv(vocabulary, CHUNK))
    tops, seconds, sums, rests = logits.new_empty(4, rows, chunks, dtype=torch.float32)
    tokens = logits.new_empty(rows, chunks, dtype=torch.int32)
    chunk_kernel[(rows, chunks)](
        logits,
        tops,
        seconds,
        tokens,
        sums,
        rests,
        vocabulary,
        logits.stride(0),
        CHUNK=CHUNK,
        num_warps=8,
    )
    token = logits.new_empty(rows, dtype=torch.int64)
    odds = logits.new_empty(rows, dtype=torch.float32)
    union_kernel[(rows,)](
        tops,
        seconds,
        tokens,
        sums,
        rests,
        token,
        odds,
        chunks,
        BLOCK=int(triton.next_power_of_2(chunks)),
    )
    return token, odds
