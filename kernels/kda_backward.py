"""KDA backward: parts of chunks and states are computed again, the state's gradient walked back, the rest per chunk.

Nothing but the inputs is kept from the forward pass. `_prepare` and `_scan` of the forward pass now leave each chunk's
first state and new values; `_scan_back` walks from a sequence's last chunk to its first and leaves the gradient of each
chunk's last state and of its new values; `_system` goes back through the solved system, `_channels` through the decays
inside the chunk and the gate, and `_finish` through the length of k.

Legend, as in `kernels.kda`: T tokens, H heads, D width of a head, P channels of one part, C tokens of a chunk, L
chunks, S sequences, V columns of one program's state.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from kernels.kda import (
    CHUNK,
    LOG2_E,
    Chunks,
    Prepared,
    across,
    around_middle,
    checked,
    close,
    descriptor,
    inverse_length,
    log2_decay,
    low_precision,
    offsets,
    prepare,
    product,
    scan,
    separated,
    to_both_ends,
)

SYSTEM_PART, PART = 32, 16
SYSTEM_LAUNCH = {"num_warps": 4}
CHANNELS_LAUNCH = {"num_warps": 4}
SCAN_COLUMNS = 128
SCAN_LAUNCH = {"num_warps": 8, "num_stages": 2}


@triton.jit
def _scan_back(w_desc, qg_desc, kg_desc, a_desc, decay_ptr, first_ptr, start_ptr, end_ptr, do_ptr, dfinal_ptr,
               dstates_ptr, dnew_ptr, dbegin_ptr, H, D: tl.constexpr, V: tl.constexpr,
               FINAL: tl.constexpr):  # fmt: skip
    """Walk the chunks of one sequence, head and block of columns from the last to the first."""
    v, head, sequence = tl.program_id(0) * V, tl.program_id(1), tl.program_id(2)
    WIDE: tl.constexpr = do_ptr.dtype.element_ty
    c_C, d_D, v_V = tl.arange(0, CHUNK), tl.arange(0, D), v + tl.arange(0, V)
    at_DV = (sequence.to(tl.int64) * H + head) * D * D + d_D[:, None] * D + v_V[None, :]
    dstate_DV = tl.load(dfinal_ptr + at_DV) if FINAL else tl.zeros([D, V], dtype=tl.float32)
    first, past = tl.load(first_ptr + sequence), tl.load(first_ptr + sequence + 1)
    for back in range(past - first):
        chunk = past - 1 - back
        tile = chunk * H + head
        wide_tile = tl.cast(tile, tl.int64)
        start = tl.load(start_ptr + chunk)
        here_C = c_C < tl.load(end_ptr + chunk) - start
        at_CV = ((start + c_C).to(tl.int64) * H + head)[:, None] * D + v_V[None, :]
        do_CV = tl.load(do_ptr + at_CV, mask=here_C[:, None], other=0.0)
        low_DV = dstate_DV.to(WIDE)
        tl.store(dstates_ptr + wide_tile * D * D + d_D[:, None] * D + v_V[None, :], low_DV)
        dnew_CV = tl.dot(kg_desc.load([tile * CHUNK, 0]), low_DV)
        dnew_CV = tl.dot(tl.trans(a_desc.load([tile * CHUNK, 0])), do_CV, dnew_CV)
        low_CV = dnew_CV.to(WIDE)
        tl.store(dnew_ptr + wide_tile * CHUNK * D + c_C[:, None] * D + v_V[None, :], low_CV)
        dstate_DV *= tl.load(decay_ptr + wide_tile * D + d_D)[:, None]
        dstate_DV = tl.dot(tl.trans(qg_desc.load([tile * CHUNK, 0])), do_CV, dstate_DV)
        dstate_DV -= tl.dot(tl.trans(w_desc.load([tile * CHUNK, 0])), low_CV)
    tl.store(dbegin_ptr + at_DV, dstate_DV)


@triton.jit
def by_warp(a_CK, b_KN):
    """The product of both, each of four warps on its own quarter of the rows."""
    return product(a_CK, b_KN, True)


@triton.jit
def sum_from(x_CP, WIDE: tl.constexpr):
    """Sum of each row and those behind it, by the matrix unit: what rounding leaves is added too."""
    i_C, j_C = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
    ones_CC = tl.where(j_C >= i_C, 1.0, 0.0).to(WIDE)
    high_CP = x_CP.to(WIDE)
    return by_warp(ones_CC, high_CP) + by_warp(ones_CC, (x_CP - high_CP.to(tl.float32)).to(WIDE))


@triton.jit
def _level(chosen_CC, dqk_CC, dkk_CC, q_CP, k_CP, from_CP, to_CP, dq_CP, dk_CP, dsum_CP, WIDE: tl.constexpr):
    """Add the gradients of the pairs of tokens that one level of decays separates.

    A pair adds to the gradient of the decay at its later token what it takes away at its earlier one. Both are formed
    from the same rounded factors, so that the sums over tokens cancel as they would without rounding.
    """
    dqk_CC = tl.where(chosen_CC, dqk_CC, 0.0).to(WIDE)
    dkk_CC = tl.where(chosen_CC, dkk_CC, 0.0).to(WIDE)
    early_CP = (k_CP * to_CP).to(WIDE)
    late_CP = (q_CP * from_CP).to(WIDE)
    more_CP = by_warp(dqk_CC, early_CP)
    dq_CP += more_CP * from_CP
    dsum_CP += more_CP * late_CP.to(tl.float32)
    back_CP = by_warp(tl.trans(dqk_CC), late_CP)
    late_CP = (k_CP * from_CP).to(WIDE)
    more_CP = by_warp(dkk_CC, early_CP)
    dk_CP += more_CP * from_CP
    dsum_CP += more_CP * late_CP.to(tl.float32)
    back_CP += by_warp(tl.trans(dkk_CC), late_CP)
    dk_CP += back_CP * to_CP
    dsum_CP -= back_CP * early_CP.to(tl.float32)
    return dq_CP, dk_CP, dsum_CP


@triton.jit
def _system(k_ptr, v_ptr, g_ptr, beta_ptr, rate_ptr, bias_ptr, start_ptr, end_ptr, do_ptr, inverse_ptr, states_ptr,
            new_ptr, dnew_ptr, dv_ptr, dbeta_ptr, dqk_ptr, dkk_ptr, H, lowest, D: tl.constexpr, P: tl.constexpr,
            LOW: tl.constexpr):  # fmt: skip
    """Gradients of v, of beta, and of a chunk's products q k^T and k k^T, through the system that the chunk solved.

    With T = (I + N)^-1 and N = diag(beta) k k^T below the diagonal, dN = -T^T dT T^T, and the sum over a row of dN N
    is the diagonal of T^T dT T^T - T^T dT.
    """
    head, chunk = tl.program_id(0), tl.program_id(1)
    WIDE: tl.constexpr = do_ptr.dtype.element_ty
    start = tl.load(start_ptr + chunk)
    c_C, d_D, p_P = tl.arange(0, CHUNK), tl.arange(0, D), tl.arange(0, P)
    i_C, j_C = c_C[:, None], c_C[None, :]
    here_C = c_C < tl.load(end_ptr + chunk) - start
    inside_C1 = here_C[:, None]
    tile = chunk.to(tl.int64) * H + head
    at_CD, at_CP = offsets(start, head, H, D, D), offsets(start, head, H, D, P)
    of_CD = tile * CHUNK * D + i_C * D + d_D[None, :]
    of_PD = tile * D * D + p_P[:, None] * D + d_D[None, :]
    of_CC = tile * CHUNK * CHUNK + i_C * CHUNK + j_C
    beta_at_C = (start + c_C).to(tl.int64) * H + head
    beta_C = tl.sigmoid(tl.load(beta_ptr + beta_at_C, mask=here_C, other=-float("inf")).to(tl.float32))
    rate = tl.load(rate_ptr + head)
    k_scale_C = inverse_length(k_ptr, at_CD, here_C)
    do_CD = tl.load(do_ptr + at_CD, mask=inside_C1, other=0.0)
    dqk_CC = by_warp(do_CD, tl.trans(tl.load(new_ptr + of_CD)))
    tl.store(dqk_ptr + of_CC, tl.where(i_C >= j_C, dqk_CC, 0.0).to(WIDE))
    inverse_CC = tl.load(inverse_ptr + of_CC)
    solve_CC = (inverse_CC.to(tl.float32) * beta_C[None, :]).to(WIDE)
    dnew_CD = tl.load(dnew_ptr + of_CD)
    tl.store(dv_ptr + at_CD, by_warp(tl.trans(solve_CC), dnew_CD).to(WIDE), mask=inside_C1)
    v_CD = tl.load(v_ptr + at_CD, mask=inside_C1, other=0.0)
    dsolve_CC = by_warp(dnew_CD, tl.trans(v_CD))
    for first in tl.range(0, D, P, num_stages=1, disable_licm=True):
        raw_CP = tl.load(g_ptr + first + at_CP, mask=inside_C1, other=0.0).to(tl.float32)
        k_CP = tl.load(k_ptr + first + at_CP, mask=inside_C1, other=0.0).to(tl.float32) * k_scale_C[:, None]
        g_CP = log2_decay(raw_CP, tl.load(bias_ptr + head * D + first + p_P), rate, lowest, here_C).to(LOW)
        from_start_CP, _, _ = to_both_ends(g_CP, True)
        minus_dw_CP = by_warp(tl.load(dnew_ptr + of_CD), tl.trans(tl.load(states_ptr + first * D + of_PD)))
        dsolve_CC -= by_warp(minus_dw_CP.to(WIDE), tl.trans((k_CP * from_start_CP).to(WIDE)))

    dbeta_C = tl.sum(dsolve_CC * inverse_CC.to(tl.float32), 0) * beta_C
    left_CC = by_warp(tl.trans(inverse_CC), (dsolve_CC * beta_C[None, :]).to(WIDE))
    minus_dn_CC = by_warp(left_CC.to(WIDE), tl.trans(inverse_CC))
    dbeta_C += tl.sum(tl.where(i_C == j_C, minus_dn_CC - left_CC, 0.0), 1)
    tl.store(dbeta_ptr + beta_at_C, (dbeta_C * (1.0 - beta_C)).to(dbeta_ptr.dtype.element_ty), mask=here_C)
    tl.store(dkk_ptr + of_CC, tl.where(i_C > j_C, -minus_dn_CC * beta_C[:, None], 0.0).to(WIDE))


@triton.jit
def _channels(q_ptr, k_ptr, g_ptr, beta_ptr, rate_ptr, bias_ptr, start_ptr, end_ptr, o_ptr, do_ptr, inverse_ptr,
              states_ptr, dstates_ptr, new_ptr, dnew_ptr, dqk_ptr, dkk_ptr, dq_ptr, dk_ptr, dg_ptr, along_ptr,
              drate_ptr, dbias_ptr, H, scale, lowest, lower_bound, D: tl.constexpr, P: tl.constexpr,
              LOW: tl.constexpr):  # fmt: skip
    """Gradients of P channels of q, of k at unit length, and of the gate.

    What a gradient of q has along q is what that of o has along o, since o is linear in q; what that of k has along k
    is left to `_finish`, which sees all channels.
    """
    head, chunk, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    WIDE: tl.constexpr = do_ptr.dtype.element_ty
    start = tl.load(start_ptr + chunk)
    c_C, d_D, p_P = tl.arange(0, CHUNK), tl.arange(0, D), part * P + tl.arange(0, P)
    i_C, j_C = c_C[:, None], c_C[None, :]
    here_C = c_C < tl.load(end_ptr + chunk) - start
    inside_C1 = here_C[:, None]
    tile = chunk.to(tl.int64) * H + head
    at_CD = offsets(start, head, H, D, D)
    at_CP = ((start + c_C).to(tl.int64) * H + head)[:, None] * D + p_P[None, :]
    of_CD = tile * CHUNK * D + i_C * D + d_D[None, :]
    of_PD = tile * D * D + p_P[:, None] * D + d_D[None, :]
    of_CC = tile * CHUNK * CHUNK + i_C * CHUNK + j_C
    beta_at_C = (start + c_C).to(tl.int64) * H + head
    beta_C = tl.sigmoid(tl.load(beta_ptr + beta_at_C, mask=here_C, other=-float("inf")).to(tl.float32))
    rate, bias_P = tl.load(rate_ptr + head), tl.load(bias_ptr + head * D + p_P)
    k_scale_C = inverse_length(k_ptr, at_CD, here_C)
    q_scale_C = inverse_length(q_ptr, at_CD, here_C)
    do_CD = tl.load(do_ptr + at_CD, mask=inside_C1, other=0.0)
    o_CD = tl.load(o_ptr + at_CD, mask=inside_C1, other=0.0).to(tl.float32)
    q_along_C = tl.sum(o_CD * do_CD.to(tl.float32), 1)
    raw_CP = tl.load(g_ptr + at_CP, mask=inside_C1, other=0.0).to(tl.float32)
    k_CP = tl.load(k_ptr + at_CP, mask=inside_C1, other=0.0).to(tl.float32) * k_scale_C[:, None]
    q_CP = tl.load(q_ptr + at_CP, mask=inside_C1, other=0.0).to(tl.float32) * q_scale_C[:, None] * scale
    g_CP = log2_decay(raw_CP, bias_P, rate, lowest, here_C).to(LOW)

    from_start_CP, to_end_CP, whole_P = to_both_ends(g_CP, True)
    state_PD = tl.load(states_ptr + of_PD)
    dq_CP = by_warp(do_CD, tl.trans(state_PD)) * from_start_CP
    dsum_CP = dq_CP * q_CP
    minus_dw_CP = by_warp(tl.load(dnew_ptr + of_CD), tl.trans(state_PD))
    solve_CC = (tl.load(inverse_ptr + of_CC).to(tl.float32) * beta_C[None, :]).to(WIDE)
    dk_CP = -by_warp(tl.trans(solve_CC), minus_dw_CP.to(WIDE)) * from_start_CP
    dsum_CP += dk_CP * k_CP
    dstate_PD = tl.load(dstates_ptr + of_PD)
    more_CP = by_warp(tl.load(new_ptr + of_CD), tl.trans(dstate_PD)) * to_end_CP
    dk_CP += more_CP
    dsum_CP -= more_CP * k_CP
    last_P = tl.sum(more_CP * k_CP, 0) + whole_P * tl.sum(state_PD.to(tl.float32) * dstate_PD.to(tl.float32), 1)

    dqk_CC, dkk_CC = tl.load(dqk_ptr + of_CC), tl.load(dkk_ptr + of_CC)
    decay_CP = across(g_CP, 32, True)
    dq_CP, dk_CP, dsum_CP = _level(separated(32), dqk_CC, dkk_CC, q_CP, k_CP, decay_CP, decay_CP, dq_CP, dk_CP,
                                   dsum_CP, WIDE)  # fmt: skip
    decay_CP = across(g_CP, 16, True)
    dq_CP, dk_CP, dsum_CP = _level(separated(16), dqk_CC, dkk_CC, q_CP, k_CP, decay_CP, decay_CP, dq_CP, dk_CP,
                                   dsum_CP, WIDE)  # fmt: skip
    decay_CP = around_middle(g_CP, True)
    dq_CP, dk_CP, dsum_CP = _level(close(), dqk_CC, dkk_CC, q_CP, k_CP, decay_CP, 1.0 / decay_CP, dq_CP, dk_CP,
                                   dsum_CP, WIDE)  # fmt: skip

    gate_CP = tl.sigmoid(rate * (raw_CP + bias_P[None, :]))
    dlog_CP = (sum_from(dsum_CP, WIDE) + last_P[None, :]) * (lower_bound * gate_CP * (1.0 - gate_CP))
    dlog_CP = tl.where(inside_C1, dlog_CP, 0.0)
    tl.store(dg_ptr + at_CP, (dlog_CP * rate).to(WIDE), mask=inside_C1)
    tl.store(dbias_ptr + tile * D + p_P, tl.sum(dlog_CP, 0) * rate)
    tl.store(drate_ptr + tile * D + p_P, tl.sum(dlog_CP * (raw_CP + bias_P[None, :]), 0))
    dq_CP = (dq_CP * scale - q_CP * (q_along_C / scale)[:, None]) * q_scale_C[:, None]
    tl.store(dq_ptr + at_CP, dq_CP.to(WIDE), mask=inside_C1)
    tl.store(dk_ptr + at_CP, dk_CP.to(WIDE), mask=inside_C1)
    of_C = (tile * tl.num_programs(2) + part) * CHUNK + c_C
    tl.store(along_ptr + of_C, tl.sum(dk_CP * k_CP, 1))


@triton.jit
def _finish(k_ptr, start_ptr, end_ptr, along_ptr, dk_ptr, H, PARTS: tl.constexpr, D: tl.constexpr):
    """Turn the gradient of k at unit length into that of k, in place."""
    head, chunk = tl.program_id(0), tl.program_id(1)
    start = tl.load(start_ptr + chunk)
    c_C = tl.arange(0, CHUNK)
    here_C = c_C < tl.load(end_ptr + chunk) - start
    at_CD = offsets(start, head, H, D, D)
    of_C = (chunk.to(tl.int64) * H + head) * PARTS * CHUNK + c_C
    along_C = tl.zeros([CHUNK], dtype=tl.float32)
    for part in tl.static_range(PARTS):
        along_C += tl.load(along_ptr + of_C + part * CHUNK)
    k_scale_C = inverse_length(k_ptr, at_CD, here_C)[:, None]
    k_CD = tl.load(k_ptr + at_CD, mask=here_C[:, None], other=0.0).to(tl.float32) * k_scale_C
    dk_CD = tl.load(dk_ptr + at_CD, mask=here_C[:, None], other=0.0).to(tl.float32)
    dk_CD = (dk_CD - k_CD * along_C[:, None]) * k_scale_C
    tl.store(dk_ptr + at_CD, dk_CD.to(dk_ptr.dtype.element_ty), mask=here_C[:, None])


def scan_back(
    found: Prepared, chunks: Chunks, do_THD: torch.Tensor, dfinal_SHDD: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of (the state behind each chunk, each chunk's new values, the first states)."""
    L, H, C, D = found.w_LHCD.shape
    V = min(SCAN_COLUMNS, D)
    dstates_LHDD, dnew_LHCD = do_THD.new_empty(L, H, D, D), do_THD.new_empty(L, H, C, D)
    dbegin_SHDD = do_THD.new_empty(chunks.sequences, H, D, D, dtype=torch.float32)
    tiles = [descriptor(x, D) for x in (found.w_LHCD, found.qg_LHCD, found.kg_LHCD)] + [descriptor(found.a_LHCC, C)]
    where = (found.decay_LHD, chunks.first_S1, chunks.start_L, chunks.end_L, do_THD)
    dfinal = dbegin_SHDD if dfinal_SHDD is None else dfinal_SHDD.contiguous()
    flags = {"D": D, "V": V, "FINAL": dfinal_SHDD is not None, **SCAN_LAUNCH}
    grid = (D // V, H, chunks.sequences)
    _scan_back[grid](*tiles, *where, dfinal, dstates_LHDD, dnew_LHCD, dbegin_SHDD, H, **flags)
    return dstates_LHDD, dnew_LHCD, dbegin_SHDD


def kda_backward(
    inputs: Sequence[torch.Tensor],
    chunks: Chunks,
    begin_SHDD: torch.Tensor | None,
    lower_bound: float,
    do_THD: torch.Tensor,
    dfinal_SHDD: torch.Tensor | None,
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """(gradients of the inputs, gradient of the first states)."""
    (_, H, D), L = inputs[0].shape, len(chunks.start_L)
    do_THD = do_THD.contiguous()
    found = prepare(inputs, chunks, lower_bound, keep_inverse=True)
    o_THD = torch.empty_like(do_THD)
    _, states_LHDD, new_LHCD = scan(found, chunks, o_THD, begin_SHDD, keep=True)
    dstates_LHDD, dnew_LHCD, dbegin_SHDD = scan_back(found, chunks, do_THD, dfinal_SHDD)
    q, k, v, g, beta, rate, bias = inputs
    dq, dk, dv, dg, dbeta = (torch.empty_like(x) for x in inputs[:5])
    dqk, dkk = (torch.empty_like(found.inverse_LHCC) for _ in range(2))
    P = min(D, PART)
    drate, dbias = (do_THD.new_empty(L, H, D, dtype=torch.float32) for _ in range(2))
    along = do_THD.new_empty(L, H, D // P, CHUNK.value, dtype=torch.float32)
    where, low = (chunks.start_L, chunks.end_L), {"D": D, "LOW": low_precision(do_THD.dtype)}
    lowest = lower_bound * LOG2_E
    _system[(H, L)](k, v, g, beta, rate, bias, *where, do_THD, found.inverse_LHCC, states_LHDD, new_LHCD, dnew_LHCD,
                    dv, dbeta, dqk, dkk, H, lowest, P=min(D, SYSTEM_PART), **low, **SYSTEM_LAUNCH)  # fmt: skip
    _channels[(H, L, D // P)](
        q, k, g, beta, rate, bias, *where, o_THD, do_THD, found.inverse_LHCC, states_LHDD, dstates_LHDD, new_LHCD,
        dnew_LHCD, dqk, dkk, dq, dk, dg, along, drate, dbias, H, D**-0.5, lowest, lower_bound, P=P, **low,
        **CHANNELS_LAUNCH)  # fmt: skip
    _finish[(H, L)](k, *where, along, dk, H, PARTS=D // P, D=D)
    return [dq, dk, dv, dg, dbeta, drate.sum((0, 2)), dbias.sum(0)], dbegin_SHDD


class _Kda(torch.autograd.Function):
    @staticmethod
    def forward(ctx, lengths, lower_bound, begin_SHDD, *inputs):
        ctx.chunks = checked(inputs, lengths, lower_bound)
        ctx.lower_bound = lower_bound
        ctx.save_for_backward(begin_SHDD, *inputs)
        o_THD = torch.empty_like(inputs[2])
        final, _, _ = scan(prepare(inputs, ctx.chunks, lower_bound, keep_inverse=False), ctx.chunks, o_THD, begin_SHDD)
        return o_THD, final

    @staticmethod
    def backward(ctx, do_THD, dfinal_SHDD):
        begin, *inputs = ctx.saved_tensors
        gradients, dbegin = kda_backward(inputs, ctx.chunks, begin, ctx.lower_bound, do_THD, dfinal_SHDD)
        return None, None, None if begin is None else dbegin, *gradients


def kda(
    inputs: Sequence[torch.Tensor],
    lengths: Sequence[int] | None = None,
    begin_SHDD: torch.Tensor | None = None,
    lower_bound: float = -5.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`kernels.kda.kda_forward`, differentiable in every input and in the first states."""
    return _Kda.apply(lengths, lower_bound, begin_SHDD, *(x.contiguous() for x in inputs))
