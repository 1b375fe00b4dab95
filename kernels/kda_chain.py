"""KDA forward as a chain of eight launches in chunks of 64 tokens, the way public kernels cut it up.

Lengths of q and of k, decays summed within chunks, scores of pairs within chunks, the inverse of each chunk's system,
its vectors w, u and decayed keys, the walk over chunks, which leaves every chunk's first state and new values, and the
outputs. Each launch reads what the one before wrote, which is what sets the chain apart from the two kernels of
`kernels.kda`; results are the same.

A chunk's decays are too strong for one reference: e^(64 * lower_bound) is no number. Scores are computed for blocks of
16 rows, those with earlier blocks relative to the block's first token, those within it relative to its middle.

Legend, as in `kernels.kda`: T tokens, H heads, D width, C tokens of a chunk, B of a block, L chunks, S sequences, V
columns of one program's state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernels.kda import LOG2_E, UNIT_EPSILON, Chunks, checked, log2_decay, low_precision, unit_lower_inverse

CHUNK, BLOCK = tl.constexpr(64), tl.constexpr(16)
ROWS = 16
"""Rows of q or k that one program normalises."""
STATE_COLUMNS = 32
STATE_LAUNCH = {"num_warps": 4, "num_stages": 3}


@triton.jit
def rows_of_chunk(start_ptr, end_ptr, chunk, head, H):
    """(index of each of a chunk's rows among all, whether it is there)."""
    c_C = tl.arange(0, CHUNK)
    start = tl.load(start_ptr + chunk)
    return (start + c_C).to(tl.int64) * H + head, c_C < tl.load(end_ptr + chunk) - start


@triton.jit
def tile(ptr, at_C, here_C, W: tl.constexpr):
    """Rows of *W* elements, zeros where they are not there."""
    return tl.load(ptr + at_C[:, None] * W + tl.arange(0, W)[None, :], mask=here_C[:, None], other=0.0)


@triton.jit
def put(ptr, at_C, here_C, x_CW):
    """Write rows in the type of *ptr*."""
    at_CW = at_C[:, None] * x_CW.shape[1] + tl.arange(0, x_CW.shape[1])[None, :]
    tl.store(ptr + at_CW, x_CW.to(ptr.dtype.element_ty), mask=here_C[:, None])


@triton.jit
def betas(beta_ptr, at_C, here_C):
    """Step sizes, zero where there is no row."""
    return tl.sigmoid(tl.load(beta_ptr + at_C, mask=here_C, other=-float("inf")).to(tl.float32))


@triton.jit
def last_sum(sum_ptr, end_ptr, chunk, head, H, D: tl.constexpr):
    """Log decay of a whole chunk."""
    row = (tl.load(end_ptr + chunk) - 1).to(tl.int64) * H + head
    return tl.load(sum_ptr + row * D + tl.arange(0, D))


@triton.jit
def _unit(x_ptr, y_ptr, rows, factor, D: tl.constexpr, R: tl.constexpr):
    """Rows of length *factor*."""
    at_R = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    x_RD = tile(x_ptr, at_R, at_R < rows, D).to(tl.float32)
    put(y_ptr, at_R, at_R < rows, x_RD * (factor * tl.rsqrt(tl.sum(x_RD * x_RD, 1) + UNIT_EPSILON))[:, None])


@triton.jit
def _decays(g_ptr, rate_ptr, bias_ptr, start_ptr, end_ptr, sum_ptr, H, lowest, D: tl.constexpr):
    """Log decays to base 2, summed from the first token of a chunk."""
    head, chunk = tl.program_id(0) % H, tl.program_id(0) // H
    at_C, here_C = rows_of_chunk(start_ptr, end_ptr, chunk, head, H)
    bias_D = tl.load(bias_ptr + head * D + tl.arange(0, D))
    raw_CD = tile(g_ptr, at_C, here_C, D).to(tl.float32)
    put(sum_ptr, at_C, here_C, tl.cumsum(log2_decay(raw_CD, bias_D, tl.load(rate_ptr + head), lowest, here_C), 0))


@triton.jit
def block_decays(sum_ptr, at_C, here_C, at_B, here_B, i, past, head, H, D: tl.constexpr):
    """Decays of block *i*: its rows since its first token, earlier rows of the chunk to there, rows to its middle.

    *past* is the row after the chunk's last; of a block that has none, all are zero or one.
    """
    d_D, final_row = tl.arange(0, D), (past - 1) * H + head
    before_row = tl.maximum(tl.min(at_C, 0) + (i * BLOCK - 1) * H, 0)
    middle_row = tl.min(at_C, 0) + (i * BLOCK + BLOCK // 2 - 1) * H
    before_D = tl.where(i > 0, tl.load(sum_ptr + tl.minimum(before_row, final_row) * D + d_D), 0.0)
    middle_D = tl.load(sum_ptr + tl.minimum(middle_row, final_row) * D + d_D)
    sum_BD, sum_CD = tile(sum_ptr, at_B, here_B, D), tile(sum_ptr, at_C, here_C, D)
    earlier_C1 = (here_C & (tl.arange(0, CHUNK) < i * BLOCK))[:, None]
    since_BD = tl.where(here_B[:, None], tl.exp2(sum_BD - before_D[None, :]), 0.0)
    to_CD = tl.where(earlier_C1, tl.exp2(before_D[None, :] - sum_CD), 0.0)
    return since_BD, to_CD, tl.where(here_B[:, None], sum_BD - middle_D[None, :], 0.0)


@triton.jit
def _scores(q_ptr, k_ptr, sum_ptr, beta_ptr, start_ptr, end_ptr, a_ptr, n_ptr, H, D: tl.constexpr):
    """Rows of one block: products of queries and of keys with the keys of all tokens up to theirs, keys' by beta."""
    i, head, chunk = tl.program_id(0), tl.program_id(1) % H, tl.program_id(1) // H
    WIDE: tl.constexpr = a_ptr.dtype.element_ty
    at_C, here_C = rows_of_chunk(start_ptr, end_ptr, chunk, head, H)
    past = tl.load(end_ptr + chunk).to(tl.int64)
    b_B, c_C = tl.arange(0, BLOCK), tl.arange(0, CHUNK)
    at_B = (tl.load(start_ptr + chunk) + i * BLOCK + b_B).to(tl.int64) * H + head
    here_B = at_B < past * H
    since_BD, to_CD, middle_BD = block_decays(sum_ptr, at_C, here_C, at_B, here_B, i, past, head, H, D)
    q_BD, k_BD = tile(q_ptr, at_B, here_B, D).to(tl.float32), tile(k_ptr, at_B, here_B, D).to(tl.float32)
    beta_B = betas(beta_ptr, at_B, here_B)[:, None]
    early_DC = tl.trans((tile(k_ptr, at_C, here_C, D) * to_CD).to(WIDE))
    early_DB = tl.trans((k_BD * tl.exp2(-middle_BD)).to(WIDE))
    late_BD = tl.exp2(middle_BD)
    mine_C = (c_C >= i * BLOCK) & (c_C < (i + 1) * BLOCK)
    out_BC = at_B[:, None] * CHUNK + c_C[None, :]
    out_BB = at_B[:, None] * CHUNK + i * BLOCK + b_B[None, :]
    other_BC = here_B[:, None] & (mine_C == 0)[None, :]
    tl.store(a_ptr + out_BC, tl.dot((q_BD * since_BD).to(WIDE), early_DC).to(WIDE), mask=other_BC)
    tl.store(n_ptr + out_BC, (beta_B * tl.dot((k_BD * since_BD).to(WIDE), early_DC)).to(WIDE), mask=other_BC)
    a_BB = tl.where(b_B[:, None] >= b_B[None, :], tl.dot((q_BD * late_BD).to(WIDE), early_DB), 0.0)
    n_BB = tl.where(b_B[:, None] > b_B[None, :], beta_B * tl.dot((k_BD * late_BD).to(WIDE), early_DB), 0.0)
    tl.store(a_ptr + out_BB, a_BB.to(WIDE), mask=here_B[:, None])
    tl.store(n_ptr + out_BB, n_BB.to(WIDE), mask=here_B[:, None])


@triton.jit
def _solve(n_ptr, start_ptr, end_ptr, inverse_ptr, H, LOW: tl.constexpr):
    """The inverse of each chunk's system."""
    head, chunk = tl.program_id(0) % H, tl.program_id(0) // H
    at_C, here_C = rows_of_chunk(start_ptr, end_ptr, chunk, head, H)
    put(inverse_ptr, at_C, here_C, unit_lower_inverse(tile(n_ptr, at_C, here_C, CHUNK).to(tl.float32), LOW, 6))


@triton.jit
def _vectors(k_ptr, v_ptr, beta_ptr, sum_ptr, inverse_ptr, start_ptr, end_ptr, w_ptr, u_ptr, kg_ptr, H,
             D: tl.constexpr):  # fmt: skip
    """w, u, and keys decayed to the end of the chunk."""
    head, chunk = tl.program_id(0) % H, tl.program_id(0) // H
    WIDE: tl.constexpr = w_ptr.dtype.element_ty
    at_C, here_C = rows_of_chunk(start_ptr, end_ptr, chunk, head, H)
    beta_C1 = betas(beta_ptr, at_C, here_C)[:, None]
    solve_CC = tile(inverse_ptr, at_C, here_C, CHUNK)
    k_CD, sum_CD = tile(k_ptr, at_C, here_C, D).to(tl.float32), tile(sum_ptr, at_C, here_C, D)
    last_D = last_sum(sum_ptr, end_ptr, chunk, head, H, D)
    put(kg_ptr, at_C, here_C, k_CD * tl.exp2(last_D[None, :] - sum_CD))
    put(w_ptr, at_C, here_C, tl.dot(solve_CC, (k_CD * tl.exp2(sum_CD) * beta_C1).to(WIDE)))
    put(u_ptr, at_C, here_C, tl.dot(solve_CC, (tile(v_ptr, at_C, here_C, D) * beta_C1).to(WIDE)))


@triton.jit
def _states(w_ptr, u_ptr, kg_ptr, sum_ptr, start_ptr, end_ptr, first_ptr, begin_ptr, states_ptr, new_ptr, final_ptr, H,
            D: tl.constexpr, V: tl.constexpr, BEGIN: tl.constexpr):  # fmt: skip
    """Walk one sequence's chunks for one head and V columns of the state."""
    v_V, head, sequence = tl.program_id(0) * V + tl.arange(0, V), tl.program_id(1), tl.program_id(2)
    WIDE: tl.constexpr = w_ptr.dtype.element_ty
    d_D = tl.arange(0, D)
    at_DV = (sequence.to(tl.int64) * H + head) * D * D + d_D[:, None] * D + v_V[None, :]
    state_DV = tl.load(begin_ptr + at_DV) if BEGIN else tl.zeros([D, V], dtype=tl.float32)
    for chunk in range(tl.load(first_ptr + sequence), tl.load(first_ptr + sequence + 1)):
        at_C, here_C = rows_of_chunk(start_ptr, end_ptr, chunk, head, H)
        at_CV = at_C[:, None] * D + v_V[None, :]
        low_DV = state_DV.to(WIDE)
        tl.store(states_ptr + (tl.cast(chunk, tl.int64) * H + head) * D * D + d_D[:, None] * D + v_V[None, :], low_DV)
        u_CV = tl.load(u_ptr + at_CV, mask=here_C[:, None], other=0.0).to(tl.float32)
        new_CV = (u_CV - tl.dot(tile(w_ptr, at_C, here_C, D), low_DV)).to(WIDE)
        tl.store(new_ptr + at_CV, new_CV, mask=here_C[:, None])
        decay_D1 = tl.exp2(last_sum(sum_ptr, end_ptr, chunk, head, H, D))[:, None]
        state_DV = tl.dot(tl.trans(tile(kg_ptr, at_C, here_C, D)), new_CV, state_DV * decay_D1)
    tl.store(final_ptr + at_DV, state_DV)


@triton.jit
def _outputs(q_ptr, sum_ptr, a_ptr, states_ptr, new_ptr, start_ptr, end_ptr, o_ptr, H, D: tl.constexpr):
    """Queries on the chunk's first state, and on the new values of the chunk."""
    head, chunk = tl.program_id(0) % H, tl.program_id(0) // H
    at_C, here_C = rows_of_chunk(start_ptr, end_ptr, chunk, head, H)
    row_D = (chunk.to(tl.int64) * H + head) * D + tl.arange(0, D)
    q_CD = tile(q_ptr, at_C, here_C, D) * tl.exp2(tile(sum_ptr, at_C, here_C, D))
    o_CD = tl.dot(q_CD.to(o_ptr.dtype.element_ty), tile(states_ptr, row_D, row_D >= 0, D))
    o_CD = tl.dot(tile(a_ptr, at_C, here_C, CHUNK), tile(new_ptr, at_C, here_C, D), o_CD)
    put(o_ptr, at_C, here_C, o_CD)


class Kept(NamedTuple):
    """What the backward pass needs beside the inputs: q and k at unit length, scores, inverses."""

    q_THD: torch.Tensor
    k_THD: torch.Tensor
    a_THC: torch.Tensor
    inverse_THC: torch.Tensor


def unit(x_THD: torch.Tensor, factor: float) -> torch.Tensor:
    """Rows of length *factor*."""
    T, H, D = x_THD.shape
    y_THD = torch.empty_like(x_THD)
    _unit[(triton.cdiv(T * H, ROWS),)](x_THD, y_THD, T * H, factor, D=D, R=ROWS, num_warps=4)
    return y_THD


def decays(inputs: Sequence[torch.Tensor], chunks: Chunks, lower_bound: float) -> torch.Tensor:
    """Summed log decays [T, H, D] in fp32."""
    g_THD, rate_H, bias_HD = inputs[3], inputs[5], inputs[6]
    _, H, D = g_THD.shape
    sum_THD = torch.empty_like(g_THD, dtype=torch.float32)
    grid, where = (H * len(chunks.start_L),), (chunks.start_L, chunks.end_L)
    _decays[grid](g_THD, rate_H, bias_HD, *where, sum_THD, H, lower_bound * LOG2_E, D=D, num_warps=4)
    return sum_THD


def scores(inputs: Sequence[torch.Tensor], sum_THD: torch.Tensor, chunks: Chunks) -> Kept:
    """Unit vectors, scores and inverses."""
    T, H, D = inputs[0].shape
    q_THD, k_THD = unit(inputs[0], D**-0.5), unit(inputs[1], 1.0)
    a_THC, n_THC, inverse_THC = (q_THD.new_empty(T, H, CHUNK.value) for _ in range(3))
    L, where = len(chunks.start_L), (chunks.start_L, chunks.end_L)
    grid = (CHUNK.value // BLOCK.value, H * L)
    _scores[grid](q_THD, k_THD, sum_THD, inputs[4], *where, a_THC, n_THC, H, D=D, num_warps=4)
    _solve[(H * L,)](n_THC, *where, inverse_THC, H, LOW=low_precision(q_THD.dtype), num_warps=4)
    return Kept(q_THD, k_THD, a_THC, inverse_THC)


def vectors(inputs: Sequence[torch.Tensor], kept: Kept, sum_THD: torch.Tensor, chunks: Chunks) -> list[torch.Tensor]:
    """(w, u, decayed keys)."""
    _, H, D = kept.k_THD.shape
    found = [torch.empty_like(kept.k_THD) for _ in range(3)]
    known = (kept.k_THD, inputs[2], inputs[4], sum_THD, kept.inverse_THC, chunks.start_L, chunks.end_L)
    _vectors[(H * len(chunks.start_L),)](*known, *found, H, D=D, num_warps=4)
    return found


def states(
    wukg: Sequence[torch.Tensor], sum_THD: torch.Tensor, chunks: Chunks, begin_SHDD: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(each chunk's first state, new values, last states)."""
    w_THD, S, L = wukg[0], chunks.sequences, len(chunks.start_L)
    _, H, D = w_THD.shape
    V = min(STATE_COLUMNS, D)
    states_LHDD, new_THD = w_THD.new_empty(L, H, D, D), torch.empty_like(w_THD)
    final_SHDD = w_THD.new_empty(S, H, D, D, dtype=torch.float32)
    begin = final_SHDD if begin_SHDD is None else begin_SHDD
    known = (*wukg, sum_THD, chunks.start_L, chunks.end_L, chunks.first_S1, begin)
    flags = {"D": D, "V": V, "BEGIN": begin_SHDD is not None, **STATE_LAUNCH}
    _states[(D // V, H, S)](*known, states_LHDD, new_THD, final_SHDD, H, **flags)
    return states_LHDD, new_THD, final_SHDD


def kda_chain_forward(
    inputs: Sequence[torch.Tensor],
    lengths: Sequence[int] | None = None,
    begin_SHDD: torch.Tensor | None = None,
    lower_bound: float = -5.0,
) -> tuple[torch.Tensor, torch.Tensor, Kept]:
    """(o_THD, last states, what the backward pass needs); inputs as of `kernels.kda.kda_forward`."""
    chunks = checked(inputs, lengths, lower_bound, CHUNK.value)
    sum_THD = decays(inputs, chunks, lower_bound)
    kept = scores(inputs, sum_THD, chunks)
    found = vectors(inputs, kept, sum_THD, chunks)
    states_LHDD, new_THD, final_SHDD = states(found, sum_THD, chunks, begin_SHDD)
    o_THD = torch.empty_like(inputs[2])
    _, H, D = o_THD.shape
    where = (chunks.start_L, chunks.end_L)
    known = (kept.q_THD, sum_THD, kept.a_THC, states_LHDD, new_THD)
    _outputs[(H * len(chunks.start_L),)](*known, *where, o_THD, H, D=D, num_warps=8)
    return o_THD, final_SHDD, kept
