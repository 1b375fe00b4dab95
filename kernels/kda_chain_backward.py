"""KDA backward as a chain of eleven launches and two sums, the way public kernels cut it up.

Decays, w and u, and the walk run again; then the gradients of the scores of queries, the walk back, what passes through
the states, through each chunk's system and through the scores of both kinds, and at last through the gates and the
lengths of k and q. Gradients of q, k and the summed decays lie in memory in fp32 between launches, each of which adds
its part.

Legend, as in `kernels.kda_chain`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from kernels.kda import UNIT_EPSILON, Chunks, sigmoid
from kernels.kda_chain import (
    BLOCK,
    CHUNK,
    ROWS,
    STATE_COLUMNS,
    Kept,
    betas,
    block_decays,
    decays,
    kda_chain_forward,
    last_sum,
    put,
    rows_of_chunk,
    states,
    tile,
    vectors,
)
from kernels.kda_function import Way, delta_rule

STATE_LAUNCH = {"num_warps": 4, "num_stages": 2}
"""Of the walk back: two programs a multiprocessor."""


@triton.jit
def _scores_of_queries(do_ptr, new_ptr, a_ptr, start_ptr, end_ptr, da_ptr, dnew_ptr, H, D: tl.constexpr):
    """Gradients of the scores of queries, and of new values as outputs see them."""
    head, chunk = tl.program_id(0) % H, tl.program_id(0) // H
    i_C, j_C = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
    at_C, here_C = rows_of_chunk(start_ptr, end_ptr, chunk, head, H)
    do_CD = tile(do_ptr, at_C, here_C, D)
    da_CC = tl.dot(do_CD, tl.trans(tile(new_ptr, at_C, here_C, D)))
    put(da_ptr, at_C, here_C, tl.where(i_C >= j_C, da_CC, 0.0))
    put(dnew_ptr, at_C, here_C, tl.dot(tl.trans(tile(a_ptr, at_C, here_C, CHUNK)), do_CD))


@triton.jit
def _states_back(q_ptr, w_ptr, kg_ptr, sum_ptr, do_ptr, start_ptr, end_ptr, first_ptr, dfinal_ptr, dnew_ptr,
                 dstates_ptr, dbegin_ptr, H, D: tl.constexpr, V: tl.constexpr, FINAL: tl.constexpr):  # fmt: skip
    """Walk back: the gradient of each chunk's last state, and all of that of its new values, in place."""
    v_V, head, sequence = tl.program_id(0) * V + tl.arange(0, V), tl.program_id(1), tl.program_id(2)
    WIDE: tl.constexpr = w_ptr.dtype.element_ty
    d_D = tl.arange(0, D)
    at_DV = (sequence.to(tl.int64) * H + head) * D * D + d_D[:, None] * D + v_V[None, :]
    dstate_DV = tl.load(dfinal_ptr + at_DV) if FINAL else tl.zeros([D, V], dtype=tl.float32)
    first, past = tl.load(first_ptr + sequence), tl.load(first_ptr + sequence + 1)
    for back in range(past - first):
        chunk = past - 1 - back
        at_C, here_C = rows_of_chunk(start_ptr, end_ptr, chunk, head, H)
        at_CV, low_DV = at_C[:, None] * D + v_V[None, :], dstate_DV.to(WIDE)
        tl.store(dstates_ptr + (tl.cast(chunk, tl.int64) * H + head) * D * D + d_D[:, None] * D + v_V[None, :], low_DV)
        dnew_CV = tl.load(dnew_ptr + at_CV, mask=here_C[:, None], other=0.0).to(tl.float32)
        dnew_CV = tl.dot(tile(kg_ptr, at_C, here_C, D), low_DV, dnew_CV).to(WIDE)
        tl.store(dnew_ptr + at_CV, dnew_CV, mask=here_C[:, None])
        qg_CD = (tile(q_ptr, at_C, here_C, D) * tl.exp2(tile(sum_ptr, at_C, here_C, D))).to(WIDE)
        do_CV = tl.load(do_ptr + at_CV, mask=here_C[:, None], other=0.0)
        dstate_DV *= tl.exp2(last_sum(sum_ptr, end_ptr, chunk, head, H, D))[:, None]
        dstate_DV = tl.dot(tl.trans(qg_CD), do_CV, dstate_DV)
        dstate_DV -= tl.dot(tl.trans(tile(w_ptr, at_C, here_C, D)), dnew_CV)
    tl.store(dbegin_ptr + at_DV, dstate_DV)


@triton.jit
def _through_states(q_ptr, k_ptr, sum_ptr, do_ptr, new_ptr, dnew_ptr, states_ptr, dstates_ptr, start_ptr, end_ptr,
                    dq_ptr, dk_ptr, dsum_ptr, dw_ptr, H, D: tl.constexpr):  # fmt: skip
    """What the chunk's first state and the gradient of its last pass to q, k, w and the decays."""
    head, chunk = tl.program_id(0) % H, tl.program_id(0) // H
    at_C, here_C = rows_of_chunk(start_ptr, end_ptr, chunk, head, H)
    row_D = (chunk.to(tl.int64) * H + head) * D + tl.arange(0, D)
    state_DD, dstate_DD = tile(states_ptr, row_D, row_D >= 0, D), tile(dstates_ptr, row_D, row_D >= 0, D)
    sum_CD, last_D = tile(sum_ptr, at_C, here_C, D), last_sum(sum_ptr, end_ptr, chunk, head, H, D)
    put(dw_ptr, at_C, here_C, -tl.dot(tile(dnew_ptr, at_C, here_C, D), tl.trans(state_DD)))
    dq_CD = tl.dot(tile(do_ptr, at_C, here_C, D), tl.trans(state_DD)) * tl.exp2(sum_CD)
    put(dq_ptr, at_C, here_C, dq_CD)
    dk_CD = tl.dot(tile(new_ptr, at_C, here_C, D), tl.trans(dstate_DD)) * tl.exp2(last_D[None, :] - sum_CD)
    put(dk_ptr, at_C, here_C, dk_CD)
    minus_CD = dk_CD * tile(k_ptr, at_C, here_C, D)
    both_DD = state_DD.to(tl.float32) * dstate_DD.to(tl.float32)
    dlast_D = tl.sum(minus_CD, 0) + tl.exp2(last_D) * tl.sum(both_DD, 1)
    is_last_C1 = (tl.arange(0, CHUNK) == tl.sum(here_C.to(tl.int32), 0) - 1)[:, None]
    dsum_CD = dq_CD * tile(q_ptr, at_C, here_C, D) - minus_CD + tl.where(is_last_C1, dlast_D[None, :], 0.0)
    put(dsum_ptr, at_C, here_C, dsum_CD)


@triton.jit
def _through_system(k_ptr, v_ptr, beta_ptr, sum_ptr, inverse_ptr, dw_ptr, dnew_ptr, start_ptr, end_ptr, dk_ptr,
                    dsum_ptr, dn_ptr, dv_ptr, dbeta_ptr, H, D: tl.constexpr):  # fmt: skip
    """What w and u pass to k, v, beta and the decays, and the gradient of the scores of keys.

    With T = (I + N)^-1, dN = -T^T dT T^T, and the sum over a row of dN N is the diagonal of T^T dT T^T - T^T dT.
    """
    head, chunk = tl.program_id(0) % H, tl.program_id(0) // H
    WIDE: tl.constexpr = dw_ptr.dtype.element_ty
    i_C, j_C = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
    at_C, here_C = rows_of_chunk(start_ptr, end_ptr, chunk, head, H)
    beta_C = betas(beta_ptr, at_C, here_C)
    inverse_CC = tile(inverse_ptr, at_C, here_C, CHUNK)
    dnew_CD, v_CD = tile(dnew_ptr, at_C, here_C, D), tile(v_ptr, at_C, here_C, D) * beta_C[:, None]
    du_CD = tl.dot(tl.trans(inverse_CC), dnew_CD)
    put(dv_ptr, at_C, here_C, du_CD * beta_C[:, None])
    dbeta_C = tl.sum(du_CD * v_CD, 1)
    dsolve_CC = tl.dot(dnew_CD, tl.trans(v_CD.to(WIDE)))
    dw_CD, decay_CD = tile(dw_ptr, at_C, here_C, D), tl.exp2(tile(sum_ptr, at_C, here_C, D)) * beta_C[:, None]
    k_CD = tile(k_ptr, at_C, here_C, D) * decay_CD
    dsolve_CC = tl.dot(dw_CD, tl.trans(k_CD.to(WIDE)), dsolve_CC)
    dx_CD = tl.dot(tl.trans(inverse_CC), dw_CD)
    put(dk_ptr, at_C, here_C, tile(dk_ptr, at_C, here_C, D) + dx_CD * decay_CD)
    put(dsum_ptr, at_C, here_C, tile(dsum_ptr, at_C, here_C, D) + dx_CD * k_CD)
    left_CC = tl.dot(tl.trans(inverse_CC), dsolve_CC.to(WIDE))
    minus_dn_CC = tl.dot(left_CC.to(WIDE), tl.trans(inverse_CC))
    dbeta_C += tl.sum(dx_CD * k_CD, 1) + tl.sum(tl.where(i_C == j_C, minus_dn_CC - left_CC, 0.0), 1)
    put(dn_ptr, at_C, here_C, tl.where(i_C > j_C, -minus_dn_CC * beta_C[:, None], 0.0))
    tl.store(dbeta_ptr + at_C, (dbeta_C * (1.0 - beta_C)).to(WIDE), mask=here_C)


@triton.jit
def _block(ptr, at_R, here_R, column, W: tl.constexpr):
    """W columns of the scores of some rows."""
    at_RW = at_R[:, None] * CHUNK + column + tl.arange(0, W)[None, :]
    return tl.load(ptr + at_RW, mask=here_R[:, None], other=0.0)


@triton.jit
def _within_block(q_BD, k_BD, da_BB, dn_BB, middle_BD):
    """(dq, dk, gradient of the summed decays) by pairs of tokens of one block."""
    WIDE: tl.constexpr = da_BB.dtype
    late_BD, early_BD = tl.exp2(middle_BD), tl.exp2(-middle_BD)
    late_q_BD, late_k_BD, early_k_BD = (q_BD * late_BD).to(WIDE), (k_BD * late_BD).to(WIDE), (k_BD * early_BD).to(WIDE)
    to_q_BD, to_k_BD = tl.dot(da_BB, early_k_BD), tl.dot(dn_BB, early_k_BD)
    back_BD = tl.dot(tl.trans(dn_BB), late_k_BD, tl.dot(tl.trans(da_BB), late_q_BD))
    dsum_BD = to_q_BD * late_q_BD + to_k_BD * late_k_BD - back_BD * early_k_BD
    return to_q_BD * late_BD, to_k_BD * late_BD + back_BD * early_BD, dsum_BD


@triton.jit
def _from_later(q_ptr, k_ptr, sum_ptr, da_ptr, dn_ptr, k_BD, sum_BD, start, i, past, head, H,
                D: tl.constexpr):  # fmt: skip
    """(dk, gradient of the summed decays) of block *i* by pairs with tokens of later blocks."""
    WIDE: tl.constexpr = da_ptr.dtype.element_ty
    dk_BD, dsum_BD = tl.zeros_like(k_BD), tl.zeros_like(k_BD)
    d_D, last_row = tl.arange(0, D), (past - 1) * H + head
    for later in range(i + 1, CHUNK // BLOCK):
        at_R = (start + later * BLOCK + tl.arange(0, BLOCK)).to(tl.int64) * H + head
        here_R = at_R < past * H
        before_row = (tl.cast(start, tl.int64) + later * BLOCK - 1) * H + head
        before_D = tl.load(sum_ptr + tl.minimum(before_row, last_row) * D + d_D)[None, :]
        since_RD = tl.where(here_R[:, None], tl.exp2(tile(sum_ptr, at_R, here_R, D) - before_D), 0.0)
        late_q_RD = (tile(q_ptr, at_R, here_R, D) * since_RD).to(WIDE)
        late_k_RD = (tile(k_ptr, at_R, here_R, D) * since_RD).to(WIDE)
        da_RB = _block(da_ptr, at_R, here_R, i * BLOCK, BLOCK)
        dn_RB = _block(dn_ptr, at_R, here_R, i * BLOCK, BLOCK)
        to_BD = tl.exp2(tl.minimum(before_D - sum_BD, 0.0))
        back_BD = tl.dot(tl.trans(dn_RB), late_k_RD, tl.dot(tl.trans(da_RB), late_q_RD))
        dk_BD += back_BD * to_BD
        dsum_BD -= back_BD * (k_BD * to_BD).to(WIDE)
    return dk_BD, dsum_BD


@triton.jit
def _through_scores(q_ptr, k_ptr, sum_ptr, da_ptr, dn_ptr, start_ptr, end_ptr, dq_ptr, dk_ptr, dsum_ptr, H,
                    D: tl.constexpr):  # fmt: skip
    """What the scores pass to q, k and the decays of one block's rows: with earlier tokens, each other, later ones.

    Each pair of tokens adds to the decay at the later what it takes away at the earlier. Both are formed from the same
    rounded factors, so that the sums over tokens cancel as they would without rounding.
    """
    i, head, chunk = tl.program_id(0), tl.program_id(1) % H, tl.program_id(1) // H
    WIDE: tl.constexpr = da_ptr.dtype.element_ty
    at_C, here_C = rows_of_chunk(start_ptr, end_ptr, chunk, head, H)
    start, past = tl.load(start_ptr + chunk), tl.load(end_ptr + chunk).to(tl.int64)
    at_B = (start + i * BLOCK + tl.arange(0, BLOCK)).to(tl.int64) * H + head
    here_B = at_B < past * H
    since_BD, to_CD, middle_BD = block_decays(sum_ptr, at_C, here_C, at_B, here_B, i, past, head, H, D)
    q_BD, k_BD = tile(q_ptr, at_B, here_B, D).to(tl.float32), tile(k_ptr, at_B, here_B, D).to(tl.float32)
    early_CD = (tile(k_ptr, at_C, here_C, D) * to_CD).to(WIDE)
    to_q_BD = tl.dot(_block(da_ptr, at_B, here_B, 0, CHUNK), early_CD)
    to_k_BD = tl.dot(_block(dn_ptr, at_B, here_B, 0, CHUNK), early_CD)
    dsum_BD = to_q_BD * (q_BD * since_BD).to(WIDE) + to_k_BD * (k_BD * since_BD).to(WIDE)
    da_BB, dn_BB = _block(da_ptr, at_B, here_B, i * BLOCK, BLOCK), _block(dn_ptr, at_B, here_B, i * BLOCK, BLOCK)
    near_dq_BD, near_dk_BD, near_BD = _within_block(q_BD, k_BD, da_BB, dn_BB, middle_BD)
    put(dq_ptr, at_B, here_B, tile(dq_ptr, at_B, here_B, D) + to_q_BD * since_BD + near_dq_BD)
    known = q_ptr, k_ptr, sum_ptr, da_ptr, dn_ptr, k_BD, tile(sum_ptr, at_B, here_B, D), start, i, past, head, H
    later_dk_BD, later_BD = _from_later(*known, D)
    put(dk_ptr, at_B, here_B, tile(dk_ptr, at_B, here_B, D) + to_k_BD * since_BD + near_dk_BD + later_dk_BD)
    put(dsum_ptr, at_B, here_B, tile(dsum_ptr, at_B, here_B, D) + dsum_BD + near_BD + later_BD)


@triton.jit
def _gates_back(g_ptr, rate_ptr, bias_ptr, dsum_ptr, start_ptr, end_ptr, dg_ptr, drate_ptr, dbias_ptr, H, lower_bound,
                D: tl.constexpr):  # fmt: skip
    """Gradients of raw gates, and each chunk's share of those of rate and bias."""
    head, chunk = tl.program_id(0) % H, tl.program_id(0) // H
    at_C, here_C = rows_of_chunk(start_ptr, end_ptr, chunk, head, H)
    d_D, rate = tl.arange(0, D), tl.load(rate_ptr + head)
    biased_CD = tile(g_ptr, at_C, here_C, D).to(tl.float32) + tl.load(bias_ptr + head * D + d_D)[None, :]
    gate_CD = sigmoid(rate * biased_CD)
    dlog_CD = tl.cumsum(tile(dsum_ptr, at_C, here_C, D), 0, reverse=True) * lower_bound * gate_CD * (1.0 - gate_CD)
    dlog_CD = tl.where(here_C[:, None], dlog_CD, 0.0)
    put(dg_ptr, at_C, here_C, dlog_CD * rate)
    of_D = (chunk.to(tl.int64) * H + head) * D + d_D
    tl.store(dbias_ptr + of_D, tl.sum(dlog_CD, 0) * rate)
    tl.store(drate_ptr + of_D, tl.sum(dlog_CD * biased_CD, 0))


@triton.jit
def _unit_back(x_ptr, dy_ptr, dx_ptr, rows, factor, D: tl.constexpr, R: tl.constexpr):
    """Gradients of rows from those of the rows of length *factor*."""
    at_R = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    x_RD = tile(x_ptr, at_R, at_R < rows, D).to(tl.float32)
    scale_R1 = tl.rsqrt(tl.sum(x_RD * x_RD, 1) + UNIT_EPSILON)[:, None]
    unit_RD, dy_RD = x_RD * scale_R1, tile(dy_ptr, at_R, at_R < rows, D) * factor
    put(dx_ptr, at_R, at_R < rows, (dy_RD - unit_RD * tl.sum(dy_RD * unit_RD, 1)[:, None]) * scale_R1)


def states_back(
    known: Sequence[torch.Tensor], chunks: Chunks, dfinal_SHDD: torch.Tensor | None, dnew_THD: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(gradient of each chunk's last state, of the first states), from (q, w, decayed k, decays, do)."""
    (_, H, D), S, V = dnew_THD.shape, chunks.sequences, min(STATE_COLUMNS, dnew_THD.shape[2])
    dstates_LHDD = dnew_THD.new_empty(len(chunks.start_L), H, D, D)
    dbegin_SHDD = dnew_THD.new_empty(S, H, D, D, dtype=torch.float32)
    dfinal = dbegin_SHDD if dfinal_SHDD is None else dfinal_SHDD.contiguous()
    where = (chunks.start_L, chunks.end_L, chunks.first_S1, dfinal)
    flags = {"D": D, "V": V, "FINAL": dfinal_SHDD is not None, **STATE_LAUNCH}
    _states_back[(D // V, H, S)](*known, *where, dnew_THD, dstates_LHDD, dbegin_SHDD, H, **flags)
    return dstates_LHDD, dbegin_SHDD


def kda_chain_backward(
    inputs: Sequence[torch.Tensor],
    kept: Kept,
    chunks: Chunks,
    begin_SHDD: torch.Tensor | None,
    lower_bound: float,
    do_THD: torch.Tensor,
    dfinal_SHDD: torch.Tensor | None,
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """(gradients of the inputs, gradient of the first states)."""
    q_in, k_in, v_THD, g_THD, beta_TH, rate_H, bias_HD = inputs
    (T, H, D), L, do_THD = q_in.shape, len(chunks.start_L), do_THD.contiguous()
    where, grid, blocks = (chunks.start_L, chunks.end_L), (H * L,), (CHUNK.value // BLOCK.value, H * L)
    q_THD, k_THD, a_THC, inverse_THC = kept.q_THD, kept.k_THD, kept.a_THC, kept.inverse_THC
    sum_THD = decays(inputs, chunks, lower_bound)
    wukg = vectors(inputs, kept, sum_THD, chunks)
    states_LHDD, new_THD, _ = states(wukg, sum_THD, chunks, begin_SHDD)
    da_THC, dn_THC = torch.empty_like(a_THC), torch.empty_like(a_THC)
    dnew_THD, dw_THD = torch.empty_like(new_THD), torch.empty_like(new_THD)
    dq_THD, dk_THD, dsum_THD = (torch.empty_like(sum_THD) for _ in range(3))
    dq, dk, dv, dg, dbeta = (torch.empty_like(x) for x in inputs[:5])
    drate, dbias = (sum_THD.new_empty(L, H, D) for _ in range(2))
    _scores_of_queries[grid](do_THD, new_THD, a_THC, *where, da_THC, dnew_THD, H, D=D, num_warps=4)
    walked = (q_THD, wukg[0], wukg[2], sum_THD, do_THD)
    dstates_LHDD, dbegin_SHDD = states_back(walked, chunks, dfinal_SHDD, dnew_THD)
    through = (q_THD, k_THD, sum_THD, do_THD, new_THD, dnew_THD, states_LHDD, dstates_LHDD)
    _through_states[grid](*through, *where, dq_THD, dk_THD, dsum_THD, dw_THD, H, D=D, num_warps=8)
    system = (k_THD, v_THD, beta_TH, sum_THD, inverse_THC, dw_THD, dnew_THD)
    _through_system[grid](*system, *where, dk_THD, dsum_THD, dn_THC, dv, dbeta, H, D=D, num_warps=8)
    _through_scores[blocks](
        q_THD, k_THD, sum_THD, da_THC, dn_THC, *where, dq_THD, dk_THD, dsum_THD, H, D=D, num_warps=4
    )
    gates = (g_THD, rate_H, bias_HD, dsum_THD, *where, dg, drate, dbias)
    _gates_back[grid](*gates, H, lower_bound, D=D, num_warps=4)
    for x_in, dy_THD, dx, factor in ((q_in, dq_THD, dq, D**-0.5), (k_in, dk_THD, dk, 1.0)):
        _unit_back[(triton.cdiv(T * H, ROWS),)](x_in, dy_THD, dx, T * H, factor, D=D, R=ROWS, num_warps=4)
    return [dq, dk, dv, dg, dbeta, drate.sum((0, 2)), dbias.sum(0)], dbegin_SHDD


CHAIN = Way(
    CHUNK.value, kda_chain_forward, lambda inputs, kept, *known: kda_chain_backward(inputs, Kept(*kept), *known)
)


def kda_chain(
    inputs: Sequence[torch.Tensor],
    lengths: Sequence[int] | None = None,
    begin_SHDD: torch.Tensor | None = None,
    lower_bound: float = -5.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`kernels.kda_chain.kda_chain_forward`, differentiable in every input and in the first states."""
    return delta_rule(CHAIN, inputs, lengths, begin_SHDD, lower_bound)
