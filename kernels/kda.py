"""KDA forward: the gated delta rule with a decay per channel, in chunks of 16 tokens, as two kernels; a decode step.

    S_t = diag(e^g_t) S_(t-1) + beta_t k_t (v_t - k_t^T diag(e^g_t) S_(t-1))^T,    o_t = S_t^T q_t

with q and k of length one (q scaled by D^-1/2), g = lower_bound * sigmoid(rate * (raw + bias)) and beta = sigmoid(raw),
all computed in the kernel. `_prepare` treats all chunks at once, two warps each: it solves the chunk's triangular
system, so that what is left of a chunk are four products with the state. `_scan` walks the chunks of one sequence and
head and keeps the state transposed in registers, where it is a factor of every product as it stands. Decays inside a
chunk are taken relative to its middle, where e^(8 * lower_bound) must be a number.

Legend: T tokens, H heads, D width of a head, C tokens of a chunk, L chunks, S sequences, V columns of one program's
state.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

CHUNK = tl.constexpr(16)
LOG2_E = 1.4426950408889634
UNIT_EPSILON = tl.constexpr(1e-6)
PREPARE_LAUNCH = {"num_warps": 2, "maxnreg": 168}
SCAN_COLUMNS = 64
SCAN_LAUNCH = {"num_warps": 4, "num_stages": 4}
DECODE_COLUMNS = 32
LOWEST_BOUND = -10.0
"""Natural log of the strongest decay of one token: eight of them in a row must stay a number in fp32 and bf16."""


@triton.jit
def sigmoid(x):
    """1 / (1 + e^-x) by a reciprocal square root, which is one instruction where a quotient is eight."""
    root = tl.rsqrt(1.0 + tl.exp2(x * -1.4426950408889634))
    return root * root


@triton.jit
def log2_decay(raw_CP, bias_P, rate, lowest, here_C):
    """Log to base 2 of each token's decay, *lowest* at least; zero for rows that are not there."""
    gate_CP = sigmoid(rate * (raw_CP + bias_P[None, :]))
    return tl.where(here_C[:, None], lowest * gate_CP, 0.0)


@triton.jit
def unit_lower_inverse(n_CC, LOW: tl.constexpr, LEVELS: tl.constexpr):
    """(I + N)^-1 of a strictly lower N of 2^LEVELS rows: inverses of diagonal blocks, doubled until one is left.

    Each step is exact algebra on true inverses, whose entries the delta rule keeps near one: half precision suffices.
    """
    i_C, j_C = tl.arange(0, n_CC.shape[0])[:, None], tl.arange(0, n_CC.shape[0])[None, :]
    inverse_CC = tl.where(i_C == j_C, 1.0, 0.0) - tl.where(i_C // 2 == j_C // 2, n_CC, 0.0)
    for level in tl.static_range(1, LEVELS):
        joined = i_C // (2 << level) == j_C // (2 << level)
        apart = i_C // (1 << level) != j_C // (1 << level)
        low_CC = inverse_CC.to(LOW)
        below_CC = tl.dot(tl.where(joined & apart, n_CC, 0.0).to(LOW), low_CC)
        inverse_CC -= tl.dot(low_CC, below_CC.to(LOW))
    return inverse_CC


@triton.jit
def _prepare(q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, rate_ptr, bias_ptr, start_ptr, end_ptr, w_ptr, u_ptr, qg_ptr, kg_ptr,
             a_ptr, inverse_ptr, log_ptr, decay_ptr, H, scale, lowest, D: tl.constexpr, LOW: tl.constexpr,
             KEEP: tl.constexpr):  # fmt: skip
    """A chunk's part without the state: w, u, decayed q and k, the products of its own queries and keys.

    KEEP writes the inverse of the chunk's system too, and the log decays of its first half and of all of it.
    """
    head, chunk = tl.program_id(0) % H, tl.program_id(0) // H
    WIDE: tl.constexpr = w_ptr.dtype.element_ty
    start = tl.load(start_ptr + chunk)
    c_C, d_D = tl.arange(0, CHUNK), tl.arange(0, D)
    i_C, j_C = c_C[:, None], c_C[None, :]
    here_C = c_C < tl.load(end_ptr + chunk) - start
    at_C = (start + c_C).to(tl.int64) * H + head
    at_CD = at_C[:, None] * D + d_D[None, :]
    k_CD = tl.load(k_ptr + at_CD, mask=here_C[:, None], other=0.0).to(tl.float32)
    q_CD = tl.load(q_ptr + at_CD, mask=here_C[:, None], other=0.0).to(tl.float32)
    raw_CD = tl.load(g_ptr + at_CD, mask=here_C[:, None], other=0.0).to(tl.float32)
    v_CD = tl.load(v_ptr + at_CD, mask=here_C[:, None], other=0.0)
    beta_C = tl.sigmoid(tl.load(beta_ptr + at_C, mask=here_C, other=-float("inf")).to(tl.float32))
    k_scale_C = tl.rsqrt(tl.sum(k_CD * k_CD, 1) + UNIT_EPSILON)
    q_scale_C = scale * tl.rsqrt(tl.sum(q_CD * q_CD, 1) + UNIT_EPSILON)
    g_CD = log2_decay(raw_CD, tl.load(bias_ptr + head * D + d_D), tl.load(rate_ptr + head), lowest, here_C)
    sum_CD = tl.cumsum(g_CD, 0)
    half_D = tl.sum(tl.where(c_C[:, None] < CHUNK // 2, g_CD, 0.0), 0)
    all_D = tl.sum(g_CD, 0)
    from_middle_CD = tl.exp2(sum_CD - half_D[None, :])
    from_start_D, to_end_D = tl.exp2(half_D), tl.exp2(all_D - half_D)
    q_CD *= from_middle_CD * q_scale_C[:, None]
    early_CD = k_CD * tl.exp2(half_D[None, :] - sum_CD) * k_scale_C[:, None]
    k_CD *= from_middle_CD * k_scale_C[:, None]
    early_DC = tl.trans(early_CD.to(WIDE))
    kk_CC = tl.dot(k_CD.to(WIDE), early_DC)
    qk_CC = tl.dot(q_CD.to(WIDE), early_DC)
    n_CC = tl.where(i_C > j_C, kk_CC * beta_C[:, None], 0.0)
    inverse_CC = unit_lower_inverse(n_CC, LOW, 4)
    solve_CC = (inverse_CC * beta_C[None, :]).to(WIDE)
    tile = chunk.to(tl.int64) * H + head
    out_CD = tile * CHUNK * D + i_C * D + d_D[None, :]
    out_CC = tile * CHUNK * CHUNK + i_C * CHUNK + j_C
    if KEEP:
        tl.store(inverse_ptr + out_CC, inverse_CC.to(WIDE))
        tl.store(log_ptr + tile * 2 * D + d_D, half_D)
        tl.store(log_ptr + tile * 2 * D + D + d_D, all_D)
    tl.store(a_ptr + out_CC, tl.where(i_C >= j_C, qk_CC, 0.0).to(WIDE))
    tl.store(decay_ptr + tile * D + d_D, tl.exp2(all_D))
    tl.store(kg_ptr + out_CD, (early_CD * to_end_D[None, :]).to(WIDE))
    tl.store(qg_ptr + out_CD, (q_CD * from_start_D[None, :]).to(WIDE))
    tl.store(w_ptr + out_CD, tl.dot(solve_CC, (k_CD * from_start_D[None, :]).to(WIDE)).to(WIDE))
    tl.store(u_ptr + out_CD, tl.dot(solve_CC, v_CD).to(WIDE))


@triton.jit
def _scan(w_desc, u_desc, qg_desc, kg_desc, a_desc, decay_ptr, first_ptr, row_ptr, begin_ptr, o_ptr, final_ptr,
          states_ptr, new_ptr, H, D: tl.constexpr, V: tl.constexpr, BEGIN: tl.constexpr,
          KEEP: tl.constexpr):  # fmt: skip
    """Walk one sequence's chunks for one head and V columns of the state, which are the rows of all products.

    KEEP writes each chunk's first state, transposed, and its new values instead of the outputs.
    """
    v, head, sequence = tl.program_id(0) * V, tl.program_id(1), tl.program_id(2)
    WIDE: tl.constexpr = o_ptr.dtype.element_ty
    c_C, d_D, v_V = tl.arange(0, CHUNK), tl.arange(0, D), v + tl.arange(0, V)
    at_VD = (sequence.to(tl.int64) * H + head) * D * D + d_D[None, :] * D + v_V[:, None]
    state_VD = tl.load(begin_ptr + at_VD) if BEGIN else tl.zeros([V, D], dtype=tl.float32)
    first, past = tl.load(first_ptr + sequence), tl.load(first_ptr + sequence + 1)
    row, end = tl.load(row_ptr + sequence), tl.load(row_ptr + sequence + 1)
    decay_ptr += head * D + d_D
    decay_D = tl.load(decay_ptr + first.to(tl.int64) * H * D)
    for chunk in range(first, past):
        tile = (chunk * H + head) * CHUNK
        low_VD = state_VD.to(WIDE)
        new_VC = tl.trans(u_desc.load([tile, v])).to(tl.float32) - tl.dot(low_VD, tl.trans(w_desc.load([tile, 0])))
        low_VC = new_VC.to(WIDE)
        if KEEP:
            rows = tl.cast(tile, tl.int64)
            tl.store(states_ptr + (rows // CHUNK * D + v_V)[:, None] * D + d_D[None, :], low_VD)
            tl.store(new_ptr + (rows + c_C)[:, None] * D + v_V[None, :], tl.trans(low_VC))
        else:
            o_VC = tl.dot(low_VD, tl.trans(qg_desc.load([tile, 0])))
            o_VC = tl.dot(low_VC, tl.trans(a_desc.load([tile, 0])), o_VC)
            row_C = row + (chunk - first) * CHUNK + c_C
            at_CV = (row_C.to(tl.int64) * H + head)[:, None] * D + v_V[None, :]
            tl.store(o_ptr + at_CV, tl.trans(o_VC).to(WIDE), mask=(row_C < end)[:, None])
        state_VD = tl.dot(low_VC, kg_desc.load([tile, 0]), state_VD * decay_D[None, :])
        decay_D = tl.load(decay_ptr + tl.minimum(chunk + 1, past - 1).to(tl.int64) * H * D)
    tl.store(final_ptr + at_VD, state_VD)


@triton.jit
def _decode(q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, rate_ptr, bias_ptr, state_ptr, o_ptr, H, scale, lowest,
            D: tl.constexpr, V: tl.constexpr):  # fmt: skip
    """One token of one sequence and head: V columns of the state are read, updated and written in place."""
    v_V = tl.program_id(0) * V + tl.arange(0, V)
    head = tl.program_id(1)
    at = tl.program_id(2).to(tl.int64) * H + head
    d_D = tl.arange(0, D)
    q_D = tl.load(q_ptr + at * D + d_D).to(tl.float32)
    k_D = tl.load(k_ptr + at * D + d_D).to(tl.float32)
    q_D *= scale / tl.sqrt(tl.sum(q_D * q_D, 0) + UNIT_EPSILON)
    k_D *= 1.0 / tl.sqrt(tl.sum(k_D * k_D, 0) + UNIT_EPSILON)
    raw_D = tl.load(g_ptr + at * D + d_D).to(tl.float32) + tl.load(bias_ptr + head * D + d_D)
    decay_D = tl.exp2(lowest * tl.sigmoid(tl.load(rate_ptr + head) * raw_D))
    beta = tl.sigmoid(tl.load(beta_ptr + at).to(tl.float32))
    at_DV = state_ptr + at * D * D + d_D[:, None] * D + v_V[None, :]
    state_DV = tl.load(at_DV) * decay_D[:, None]
    seen_V = tl.sum(state_DV * k_D[:, None], 0)
    new_V = (tl.load(v_ptr + at * D + v_V).to(tl.float32) - seen_V) * beta
    state_DV += k_D[:, None] * new_V[None, :]
    tl.store(at_DV, state_DV)
    tl.store(o_ptr + at * D + v_V, tl.sum(state_DV * q_D[:, None], 0).to(o_ptr.dtype.element_ty))


@dataclass(frozen=True)
class Chunks:
    """Where chunks lie among packed tokens: rows start_L to end_L, sequence s from first_S1[s], row_S1[s]."""

    start_L: torch.Tensor
    end_L: torch.Tensor
    first_S1: torch.Tensor
    row_S1: torch.Tensor

    @property
    def sequences(self) -> int:
        """Number of sequences."""
        return len(self.first_S1) - 1


@functools.lru_cache(maxsize=64)
def chunks_of(lengths: tuple[int, ...], device: torch.device, tokens: int = CHUNK.value) -> Chunks:
    """Chunks of *tokens* of sequences of these lengths, laid one after the other; no chunk holds tokens of two."""
    starts, ends, firsts, rows = [], [], [0], [0]
    for length in lengths:
        begins = range(rows[-1], rows[-1] + length, tokens)
        rows.append(rows[-1] + length)
        starts += begins
        ends += [min(rows[-1], begin + tokens) for begin in begins]
        firsts.append(len(starts))
    return Chunks(*(torch.tensor(list_, dtype=torch.int32, device=device) for list_ in (starts, ends, firsts, rows)))


def low_precision(dtype: torch.dtype) -> tl.dtype:
    """Type of products of factors that are at most one, of which fp16 keeps three bits more than bf16."""
    return tl.float32 if dtype == torch.float32 else tl.float16


@dataclass(frozen=True)
class Prepared:
    """What `_prepare` leaves of each chunk and head; the inverse and both log decays only where they were asked for."""

    w_LHCD: torch.Tensor
    u_LHCD: torch.Tensor
    qg_LHCD: torch.Tensor
    kg_LHCD: torch.Tensor
    a_LHCC: torch.Tensor
    inverse_LHCC: torch.Tensor
    log_LH2D: torch.Tensor
    decay_LHD: torch.Tensor


def prepare(inputs: Sequence[torch.Tensor], chunks: Chunks, lower_bound: float, *, keep: bool = False) -> Prepared:
    """Run `_prepare` over (q, k, v, raw gate, raw beta, rate, bias)."""
    q_THD = inputs[0]
    (_, H, D), L, C = q_THD.shape, len(chunks.start_L), CHUNK.value
    w, u, qg, kg = (q_THD.new_empty(L, H, C, D) for _ in range(4))
    a = q_THD.new_empty(L, H, C, C)
    inverse = torch.empty_like(a) if keep else a
    decay = q_THD.new_empty(L, H, D, dtype=torch.float32)
    log = q_THD.new_empty(L, H, 2, D, dtype=torch.float32) if keep else decay
    found = Prepared(w, u, qg, kg, a, inverse, log, decay)
    arguments = (*inputs, chunks.start_L, chunks.end_L, w, u, qg, kg, a, inverse, log, decay, H, D**-0.5)
    flags = {"D": D, "LOW": low_precision(q_THD.dtype), "KEEP": keep}
    _prepare[(H * L,)](*arguments, lower_bound * LOG2_E, **flags, **PREPARE_LAUNCH)
    return found


def tiles(x: torch.Tensor, columns: int) -> TensorDescriptor:
    """Tiles of a chunk's rows and *columns* of *x*, all of whose dimensions but the last count as rows."""
    return TensorDescriptor.from_tensor(x.view(-1, x.shape[-1]), [CHUNK.value, columns])


def scan(
    found: Prepared,
    chunks: Chunks,
    begin_SHDD: torch.Tensor | None,
    o_THD: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(last states, each chunk's first state transposed, its new values), the latter two without *o_THD* only.

    Fills *o_THD*.
    """
    L, H, C, D = found.w_LHCD.shape
    V, keep = min(SCAN_COLUMNS, D), o_THD is None
    final_SHDD = found.decay_LHD.new_empty(chunks.sequences, H, D, D)
    states_LHDD = found.w_LHCD.new_empty(L, H, D, D) if keep else o_THD
    new_LHCD = torch.empty_like(found.u_LHCD) if keep else o_THD
    read = [tiles(found.w_LHCD, D), tiles(found.u_LHCD, V), tiles(found.qg_LHCD, D)]
    read += [tiles(found.kg_LHCD, D), tiles(found.a_LHCC, C)]
    begin = final_SHDD if begin_SHDD is None else begin_SHDD
    where = (found.decay_LHD, chunks.first_S1, chunks.row_S1, begin)
    wrote = (new_LHCD if keep else o_THD, final_SHDD, states_LHDD, new_LHCD)
    flags = {"D": D, "V": V, "BEGIN": begin_SHDD is not None, "KEEP": keep}
    _scan[(D // V, H, chunks.sequences)](*read, *where, *wrote, H, **flags, **SCAN_LAUNCH)
    return final_SHDD, states_LHDD, new_LHCD


def checked(
    inputs: Sequence[torch.Tensor], lengths: Sequence[int] | None, lower_bound: float, tokens: int = CHUNK.value
) -> Chunks:
    """The chunks of *lengths*, or a ValueError saying which of the inputs do not go together."""
    T, H, D = inputs[0].shape
    lengths = (T,) if lengths is None else tuple(lengths)
    wrong = [f"{name} is {tuple(x.shape)}" for name, x in zip("qkvg", inputs, strict=False) if x.shape != (T, H, D)]
    if D & (D - 1) or not 16 <= D <= 128:
        wrong.append(f"heads are {D} wide, not 16, 32, 64 or 128")
    if sum(lengths) != T or min(lengths) < 1:
        wrong.append(f"lengths sum to {sum(lengths)}, the least is {min(lengths)}, tokens are {T}")
    if not LOWEST_BOUND <= lower_bound < 0:
        wrong.append(f"lower_bound is {lower_bound}, not between {LOWEST_BOUND} and 0")
    if wrong:
        raise ValueError("; ".join(wrong))
    return chunks_of(lengths, inputs[0].device, tokens)


def kda_forward(
    inputs: Sequence[torch.Tensor],
    lengths: Sequence[int] | None = None,
    begin_SHDD: torch.Tensor | None = None,
    lower_bound: float = -5.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(o_THD, last states) of packed (q, k, v, raw gate [T, H, D], raw beta [T, H], rate [H], bias [H, D]).

    *lengths* are those of the sequences, one sequence if left out; *begin_SHDD* their first states in fp32, else zero.
    """
    chunks = checked(inputs, lengths, lower_bound)
    o_THD = torch.empty_like(inputs[2])
    final_SHDD, _, _ = scan(prepare(inputs, chunks, lower_bound), chunks, begin_SHDD, o_THD)
    return o_THD, final_SHDD


def kda_decode(inputs: Sequence[torch.Tensor], state_SHDD: torch.Tensor, lower_bound: float = -5.0) -> torch.Tensor:
    """One new token for each sequence; *inputs* as of `kda_forward` with S for T; updates *state_SHDD*, in fp32."""
    S, H, D = inputs[0].shape
    o_SHD = torch.empty_like(inputs[2])
    V = min(DECODE_COLUMNS, D)
    _decode[(D // V, H, S)](*inputs, state_SHDD, o_SHD, H, D**-0.5, lower_bound * LOG2_E, D=D, V=V, num_warps=4)
    return o_SHD
