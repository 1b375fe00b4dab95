"""KDA backward: parts of chunks and states are computed again, the state's gradient walked back, the rest per chunk.

Nothing but the inputs is kept from the forward pass. `_prepare` and `_scan` of the forward pass now leave each chunk's
first state and new values; `_scan_back` walks from a sequence's last chunk to its first and leaves the gradient of each
chunk's last state and of its new values; `_local` goes back through the chunk's system, the decays inside it, the gate
and the lengths of q and k, with all channels of the chunk at hand.

Legend, as in `kernels.kda`: T tokens, H heads, D width of a head, C tokens of a chunk, L chunks, S sequences, V columns
of one program's state.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.kda import (
    CHUNK,
    LOG2_E,
    UNIT_EPSILON,
    Chunks,
    Prepared,
    kda_forward,
    prepare,
    scan,
    sigmoid,
    tiles,
)
from kernels.kda_function import Way, delta_rule

PART = 64
"""Rows of a chunk's state that `_local` takes at a time."""
LOCAL_LAUNCH = {"num_warps": 4, "num_stages": 3}
SCAN_COLUMNS = 64
SCAN_LAUNCH = {"num_warps": 4, "num_stages": 4}


@triton.jit
def _scan_back(w_desc, qg_desc, kg_desc, a_desc, decay_ptr, first_ptr, row_ptr, do_ptr, dfinal_ptr, dstates_ptr,
               dnew_ptr, dbegin_ptr, H, D: tl.constexpr, V: tl.constexpr, FINAL: tl.constexpr):  # fmt: skip
    """Walk the chunks of one sequence, head and V columns of the state from the last to the first."""
    v, head, sequence = tl.program_id(0) * V, tl.program_id(1), tl.program_id(2)
    WIDE: tl.constexpr = do_ptr.dtype.element_ty
    c_C, d_D, v_V = tl.arange(0, CHUNK), tl.arange(0, D), v + tl.arange(0, V)
    at_VD = (sequence.to(tl.int64) * H + head) * D * D + d_D[None, :] * D + v_V[:, None]
    dstate_VD = tl.load(dfinal_ptr + at_VD) if FINAL else tl.zeros([V, D], dtype=tl.float32)
    first, past = tl.load(first_ptr + sequence), tl.load(first_ptr + sequence + 1)
    row, end = tl.load(row_ptr + sequence), tl.load(row_ptr + sequence + 1)
    decay_ptr += head * D + d_D
    decay_D = tl.load(decay_ptr + (past - 1).to(tl.int64) * H * D)
    for back in range(past - first):
        chunk = past - 1 - back
        tile = (chunk * H + head) * CHUNK
        rows = tl.cast(tile, tl.int64)
        row_C = row + (chunk - first) * CHUNK + c_C
        at_CV = (row_C.to(tl.int64) * H + head)[:, None] * D + v_V[None, :]
        do_VC = tl.trans(tl.load(do_ptr + at_CV, mask=(row_C < end)[:, None], other=0.0))
        low_VD = dstate_VD.to(WIDE)
        tl.store(dstates_ptr + (rows // CHUNK * D + v_V)[:, None] * D + d_D[None, :], low_VD)
        dnew_VC = tl.dot(low_VD, tl.trans(kg_desc.load([tile, 0])))
        dnew_VC = tl.dot(do_VC, a_desc.load([tile, 0]), dnew_VC)
        low_VC = dnew_VC.to(WIDE)
        tl.store(dnew_ptr + (rows + c_C)[:, None] * D + v_V[None, :], tl.trans(low_VC))
        dstate_VD = tl.dot(do_VC, qg_desc.load([tile, 0]), dstate_VD * decay_D[None, :])
        dstate_VD = tl.dot((-dnew_VC).to(WIDE), w_desc.load([tile, 0]), dstate_VD)
        decay_D = tl.load(decay_ptr + tl.maximum(chunk - 1, first).to(tl.int64) * H * D)
    tl.store(dbegin_ptr + at_VD, dstate_VD)


@triton.jit
def _system(dsolve_CC, inverse_CC, beta_C):
    """(beta times its gradient, gradient of k k^T) of a chunk, through the system that it solved.

    With T = (I + N)^-1 and N = diag(beta) k k^T below the diagonal, dN = -T^T dT T^T, and the sum over a row of dN N
    is the diagonal of T^T dT T^T - T^T dT.
    """
    i_C, j_C = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
    LOW: tl.constexpr = inverse_CC.dtype
    dbeta_C = tl.sum(dsolve_CC * inverse_CC.to(tl.float32), 0) * beta_C
    left_CC = tl.dot(tl.trans(inverse_CC), (dsolve_CC * beta_C[None, :]).to(LOW))
    minus_dn_CC = tl.dot(left_CC.to(LOW), tl.trans(inverse_CC))
    dbeta_C += tl.sum(tl.where(i_C == j_C, minus_dn_CC - left_CC, 0.0), 1)
    return dbeta_C, tl.where(i_C > j_C, -minus_dn_CC * beta_C[:, None], 0.0).to(LOW)


@triton.jit
def _without_length(d_CD, unit_CD, scale_C):
    """Gradient of rows from that of the rows at unit length."""
    return (d_CD - unit_CD * tl.sum(d_CD * unit_CD, 1)[:, None]) * scale_C[:, None]


@triton.jit
def _gate(at_CD, inside_C1, rate, bias_D):
    """(gate of each token and channel, zero where there is no token; what it is the sigmoid of, over the rate)."""
    biased_CD = tl.load(at_CD, mask=inside_C1, other=0.0).to(tl.float32) + bias_D[None, :]
    return tl.where(inside_C1, sigmoid(rate * biased_CD), 0.0), biased_CD


@triton.jit
def _unit_rows(x_CD):
    """(rows at unit length, what they were multiplied by)."""
    scale_C = tl.rsqrt(tl.sum(x_CD * x_CD, 1) + UNIT_EPSILON)
    return x_CD * scale_C[:, None], scale_C


@triton.jit
def _through_states(do_at_C1, new_at_C1, dnew_at_C1, inside_C1, states_desc, dstates_desc, tile, D: tl.constexpr,
                    P: tl.constexpr):  # fmt: skip
    """With the chunk's first state S and the gradient dS' of its last: do S, dv S, v dS', the sum of S dS' over rows.

    That sum, which is what later chunks add, is a product with ones: sums across warps conflict in shared memory.
    """
    C: tl.constexpr = CHUNK
    dq_CD, minus_dw_CD = tl.zeros([C, D], dtype=tl.float32), tl.zeros([C, D], dtype=tl.float32)
    dend_CD, last_CD = tl.zeros([C, D], dtype=tl.float32), tl.zeros([C, D], dtype=tl.float32)
    one_CP = tl.full([C, P], 1.0, dtype=do_at_C1.dtype.element_ty)
    for first in range(0, D, P):
        part_P = first + tl.arange(0, P)[None, :]
        do_CP = tl.load(do_at_C1 + part_P, mask=inside_C1, other=0.0)
        state_PD, dstate_PD = states_desc.load([tile * D + first, 0]), dstates_desc.load([tile * D + first, 0])
        dq_CD = tl.dot(do_CP, state_PD, dq_CD)
        minus_dw_CD = tl.dot(tl.load(dnew_at_C1 + part_P), state_PD, minus_dw_CD)
        dend_CD = tl.dot(tl.load(new_at_C1 + part_P), dstate_PD, dend_CD)
        last_CD = tl.dot(one_CP, state_PD * dstate_PD, last_CD)
    return dq_CD, minus_dw_CD, dend_CD, last_CD


@triton.jit
def _queries(dq_CD, q_CD, q_scale_C, late_CD, early_k_CD, do_at_CD, new_at_CD, scale, dq_at_CD, inside_C1):
    """Write the gradient of q; (that of the summed decays so far, what later queries pass back to decayed keys)."""
    i_C, j_C = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
    WIDE: tl.constexpr = early_k_CD.dtype
    late_q_CD = (q_CD * late_CD * scale).to(WIDE)
    do_CD, new_CD = tl.load(do_at_CD, mask=inside_C1, other=0.0), tl.load(new_at_CD)
    dqk_CC = tl.where(i_C >= j_C, tl.dot(do_CD, tl.trans(new_CD)), 0.0).to(WIDE)
    more_CD, back_CD = tl.dot(dqk_CC, early_k_CD), tl.dot(tl.trans(dqk_CC), late_q_CD)
    dsum_CD = dq_CD * q_CD * scale + more_CD * late_q_CD.to(tl.float32)
    dq_CD = _without_length((dq_CD + more_CD * late_CD) * scale, q_CD, q_scale_C)
    tl.store(dq_at_CD, dq_CD.to(WIDE), mask=inside_C1)
    return dsum_CD, back_CD


@triton.jit
def _solved(inverse_CC, beta_C, minus_dw_CD, dnew_CD, v_CD, k_CD, late_CD, from_start_D, dv_at_CD, dbeta_at_C,
            here_C):  # fmt: skip
    """Write the gradients of v and beta; (that of k through w, that of k k^T)."""
    WIDE: tl.constexpr = dnew_CD.dtype
    solve_CC = (inverse_CC.to(tl.float32) * beta_C[None, :]).to(WIDE)
    tl.store(dv_at_CD, tl.dot(tl.trans(solve_CC), dnew_CD).to(WIDE), mask=here_C[:, None])
    minus_dw_CD = minus_dw_CD.to(WIDE)
    dsolve_CC = tl.dot(dnew_CD, tl.trans(v_CD))
    dsolve_CC -= tl.dot(minus_dw_CD, tl.trans((k_CD * late_CD * from_start_D).to(WIDE)))
    dbeta_C, dkk_CC = _system(dsolve_CC, inverse_CC, beta_C)
    tl.store(dbeta_at_C, (dbeta_C * (1.0 - beta_C)).to(WIDE), mask=here_C)
    return -tl.dot(tl.trans(solve_CC), minus_dw_CD) * late_CD * from_start_D, dkk_CC


@triton.jit
def _keys(dk_CD, dend_CD, back_CD, dsum_CD, dkk_CC, k_CD, k_scale_C, late_CD, early_CD, early_k_CD, dk_at_CD,
          inside_C1):  # fmt: skip
    """Write the gradient of k; that of the summed decays.

    A pair of tokens adds to the gradient of the decay at the later what it takes away at the earlier. Both are formed
    from the same rounded factors, so that the sums over tokens cancel as they would without rounding.
    """
    WIDE: tl.constexpr = early_k_CD.dtype
    dsum_CD += (dk_CD - dend_CD) * k_CD
    late_k_CD = (k_CD * late_CD).to(WIDE)
    more_CD = tl.dot(dkk_CC, early_k_CD)
    dsum_CD += more_CD * late_k_CD.to(tl.float32)
    back_CD = tl.dot(tl.trans(dkk_CC), late_k_CD, back_CD)
    dsum_CD -= back_CD * early_k_CD.to(tl.float32)
    dk_CD = _without_length(dk_CD + dend_CD + more_CD * late_CD + back_CD * early_CD, k_CD, k_scale_C)
    tl.store(dk_at_CD, dk_CD.to(WIDE), mask=inside_C1)
    return dsum_CD


@triton.jit
def _gates(dlog_CD, g_at_CD, dg_at_CD, dbias_at_D, drate_at_D, inside_C1, rate, bias_D, lower_bound):
    """Write the gradient of raw gates, and the chunk's share of those of rate and bias."""
    gate_CD, biased_CD = _gate(g_at_CD, inside_C1, rate, bias_D)
    dlog_CD *= lower_bound * gate_CD * (1.0 - gate_CD)
    tl.store(dg_at_CD, (dlog_CD * rate).to(dg_at_CD.dtype.element_ty), mask=inside_C1)
    tl.store(dbias_at_D, tl.sum(dlog_CD, 0) * rate)
    tl.store(drate_at_D, tl.sum(dlog_CD * biased_CD, 0))


@triton.jit
def _local(q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, rate_ptr, bias_ptr, start_ptr, end_ptr, do_ptr, inverse_ptr,
           log_ptr, states_desc, dstates_desc, new_ptr, dnew_ptr, dq_ptr, dk_ptr, dv_ptr, dg_ptr, dbeta_ptr, drate_ptr,
           dbias_ptr, H, scale, lowest, lower_bound, D: tl.constexpr, P: tl.constexpr):  # fmt: skip
    """Gradients of a chunk's inputs."""
    head, chunk = tl.program_id(0) % H, tl.program_id(0) // H
    WIDE: tl.constexpr = do_ptr.dtype.element_ty
    start = tl.load(start_ptr + chunk)
    c_C, d_D = tl.arange(0, CHUNK), tl.arange(0, D)
    here_C = c_C < tl.load(end_ptr + chunk) - start
    inside_C1 = here_C[:, None]
    tile = chunk * H + head
    rows_C1 = (tile.to(tl.int64) * CHUNK + c_C)[:, None]
    of_CD = rows_C1 * D + d_D[None, :]
    at_C = (start + c_C).to(tl.int64) * H + head
    at_CD = at_C[:, None] * D + d_D[None, :]
    beta_C = tl.sigmoid(tl.load(beta_ptr + at_C, mask=here_C, other=-float("inf")).to(tl.float32))
    rate, bias_D = tl.load(rate_ptr + head), tl.load(bias_ptr + head * D + d_D)
    q_CD = tl.load(q_ptr + at_CD, mask=inside_C1, other=0.0).to(tl.float32)
    k_CD = tl.load(k_ptr + at_CD, mask=inside_C1, other=0.0).to(tl.float32)
    q_CD, q_scale_C = _unit_rows(q_CD)
    k_CD, k_scale_C = _unit_rows(k_CD)
    sum_CD = tl.cumsum(lowest * _gate(g_ptr + at_CD, inside_C1, rate, bias_D)[0], 0)
    log_ptr += tile.to(tl.int64) * 2 * D + d_D
    half_D, all_D = tl.load(log_ptr), tl.load(log_ptr + D)
    late_CD, early_CD = tl.exp2(sum_CD - half_D[None, :]), tl.exp2(half_D[None, :] - sum_CD)
    from_start_D, to_end_D = tl.exp2(half_D)[None, :], tl.exp2(all_D - half_D)[None, :]

    rows = do_ptr + at_C[:, None] * D, new_ptr + rows_C1 * D, dnew_ptr + rows_C1 * D
    dq_CD, minus_dw_CD, dend_CD, last_CD = _through_states(*rows, inside_C1, states_desc, dstates_desc, tile, D, P)
    dq_CD, dend_CD = dq_CD * late_CD * from_start_D, dend_CD * early_CD * to_end_D
    last_CD = tl.sum(dend_CD * k_CD, 0)[None, :] + tl.exp2(all_D)[None, :] * last_CD

    early_k_CD = (k_CD * early_CD).to(WIDE)
    of_q = dq_CD, q_CD, q_scale_C, late_CD, early_k_CD, do_ptr + at_CD, new_ptr + of_CD, scale
    dsum_CD, back_CD = _queries(*of_q, dq_ptr + at_CD, inside_C1)

    dnew_CD, v_CD = tl.load(dnew_ptr + of_CD), tl.load(v_ptr + at_CD, mask=inside_C1, other=0.0)
    inverse_CC = tl.load(inverse_ptr + rows_C1 * CHUNK + c_C[None, :])
    of_v = minus_dw_CD, dnew_CD, v_CD, k_CD, late_CD, from_start_D
    dk_CD, dkk_CC = _solved(inverse_CC, beta_C, *of_v, dv_ptr + at_CD, dbeta_ptr + at_C, here_C)

    of_k = dk_CD, dend_CD, back_CD, dsum_CD, dkk_CC
    dsum_CD = _keys(*of_k, k_CD, k_scale_C, late_CD, early_CD, early_k_CD, dk_ptr + at_CD, inside_C1)

    dlog_CD = tl.cumsum(dsum_CD, 0, reverse=True) + last_CD
    of_D = tile.to(tl.int64) * D + d_D
    of_gate = g_ptr + at_CD, dg_ptr + at_CD, dbias_ptr + of_D, drate_ptr + of_D
    _gates(dlog_CD, *of_gate, inside_C1, rate, bias_D, lower_bound)


def scan_back(
    found: Prepared, chunks: Chunks, do_THD: torch.Tensor, dfinal_SHDD: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of (the state behind each chunk, transposed; each chunk's new values; the first states)."""
    L, H, C, D = found.w_LHCD.shape
    V = min(SCAN_COLUMNS, D)
    dstates_LHDD, dnew_LHCD = do_THD.new_empty(L, H, D, D), do_THD.new_empty(L, H, C, D)
    dbegin_SHDD = do_THD.new_empty(chunks.sequences, H, D, D, dtype=torch.float32)
    read = [tiles(x, D) for x in (found.w_LHCD, found.qg_LHCD, found.kg_LHCD)] + [tiles(found.a_LHCC, C)]
    where = (found.decay_LHD, chunks.first_S1, chunks.row_S1, do_THD)
    dfinal = dbegin_SHDD if dfinal_SHDD is None else dfinal_SHDD.contiguous()
    flags = {"D": D, "V": V, "FINAL": dfinal_SHDD is not None, **SCAN_LAUNCH}
    grid = (D // V, H, chunks.sequences)
    _scan_back[grid](*read, *where, dfinal, dstates_LHDD, dnew_LHCD, dbegin_SHDD, H, **flags)
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
    found = prepare(inputs, chunks, lower_bound, keep=True)
    _, states_LHDD, new_LHCD = scan(found, chunks, begin_SHDD)
    dstates_LHDD, dnew_LHCD, dbegin_SHDD = scan_back(found, chunks, do_THD, dfinal_SHDD)
    P = min(PART, D)
    gradients = [torch.empty_like(x) for x in inputs[:5]]
    drate, dbias = (do_THD.new_empty(L, H, D, dtype=torch.float32) for _ in range(2))
    states, dstates = (TensorDescriptor.from_tensor(x.view(-1, D), [P, D]) for x in (states_LHDD, dstates_LHDD))
    known = (do_THD, found.inverse_LHCC, found.log_LH2D, states, dstates, new_LHCD, dnew_LHCD)
    numbers = (H, D**-0.5, lower_bound * LOG2_E, lower_bound)
    where = (chunks.start_L, chunks.end_L)
    _local[(H * L,)](*inputs, *where, *known, *gradients, drate, dbias, *numbers, D=D, P=P, **LOCAL_LAUNCH)
    return [*gradients, drate.sum((0, 2)), dbias.sum(0)], dbegin_SHDD


FUSED = Way(
    CHUNK.value,
    lambda *known: (*kda_forward(*known), ()),
    lambda inputs, _, *known: kda_backward(inputs, *known),
)


def kda(
    inputs: Sequence[torch.Tensor],
    lengths: Sequence[int] | None = None,
    begin_SHDD: torch.Tensor | None = None,
    lower_bound: float = -5.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`kernels.kda.kda_forward`, differentiable in every input and in the first states."""
    return delta_rule(FUSED, inputs, lengths, begin_SHDD, lower_bound)
