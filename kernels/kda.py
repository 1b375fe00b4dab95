"""KDA forward: the gated delta rule with a decay per channel, in chunks of 64 tokens, as two kernels; a decode step.

    S_t = diag(e^g_t) S_(t-1) + beta_t k_t (v_t - k_t^T diag(e^g_t) S_(t-1))^T,    o_t = S_t^T q_t

with q and k of length one (q scaled by D^-1/2), g = lower_bound * sigmoid(rate * (raw + bias)) and beta = sigmoid(raw),
all computed in the kernel. `_prepare` treats all chunks at once: it solves each chunk's triangular system, so that
what is left of a chunk are four products with the state; `_scan` walks the chunks of one sequence and head and keeps
the state on chip. Only bounded numbers meet the matrix units: decays within a chunk are taken relative to a token
between the two, by halves, then quarters, then inside 16 tokens relative to their middle, where e^(8 * lower_bound)
must be a number.

Legend: T tokens, H heads, D width of a head, P channels of one part, C tokens of a chunk, L chunks, S
sequences, V columns of one program's state.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

CHUNK = tl.constexpr(64)
LOG2_E = 1.4426950408889634
UNIT_EPSILON = tl.constexpr(1e-6)
PART = 64
PREPARE_LAUNCH = {"num_warps": 4}
SCAN_COLUMNS = 128
SCAN_LAUNCH = {"num_warps": 8, "num_stages": 2}
DECODE_COLUMNS = 32
LOWEST_BOUND = -10.0
"""Natural log of the strongest decay of one token: eight of them in a row must stay a number in fp32 and bf16."""


@triton.jit
def product(a_CK, b_KN, QUARTERED: tl.constexpr):
    """The product of both; if QUARTERED, each of four warps takes its own quarter of the rows, from registers.

    A batch of four asks Triton for that: the matrix instructions of one warp instead of those of a group of four.
    """
    if QUARTERED:
        C: tl.constexpr = a_CK.shape[0]
        K: tl.constexpr = a_CK.shape[1]
        N: tl.constexpr = b_KN.shape[1]
        quarters = tl.reshape(a_CK, [4, C // 4, K])
        return tl.reshape(tl.dot(quarters, tl.broadcast_to(tl.expand_dims(b_KN, 0), [4, K, N])), [C, N])
    return tl.dot(a_CK, b_KN)


@triton.jit
def offsets(start, head, H, D: tl.constexpr, P: tl.constexpr):
    """Offsets of the first P channels of one head's rows of a chunk in [T, H, D]."""
    return ((start + tl.arange(0, CHUNK)).to(tl.int64) * H + head)[:, None] * D + tl.arange(0, P)[None, :]


@triton.jit
def inverse_length(x_ptr, at_CD, here_C):
    """One over the length of each row; finite for rows that are not there."""
    x_CD = tl.load(x_ptr + at_CD, mask=here_C[:, None], other=0.0).to(tl.float32)
    return 1.0 / tl.sqrt(tl.sum(x_CD * x_CD, 1) + UNIT_EPSILON)


@triton.jit
def log2_decay(raw_CP, bias_P, rate, lowest, here_C):
    """Log to base 2 of each token's decay, *lowest* at least; zero for rows that are not there."""
    gate_CP = tl.sigmoid(rate * (raw_CP + bias_P[None, :]))
    return tl.where(here_C[:, None], lowest * gate_CP, 0.0)


@triton.jit
def decay_to(first_CC, last_CC, g_CP, QUARTERED: tl.constexpr):
    """Product of the decays of tokens *first* to *last* of a chunk, for each row its own two.

    A sum of logs over a range of rows is a product with a matrix of zeros and ones: the matrix unit adds it up in fp32.
    """
    j_C = tl.arange(0, CHUNK)[None, :]
    chosen_CC = (j_C >= first_CC) & (j_C <= last_CC)
    return tl.exp2(product(tl.where(chosen_CC, 1.0, 0.0).to(g_CP.dtype), g_CP, QUARTERED))


@triton.jit
def to_both_ends(g_CP, QUARTERED: tl.constexpr):
    """(decay from the start to each token, its own included; from each token to the end; of the whole chunk)."""
    i_C, j_C = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
    sum_CP = product(tl.where(j_C <= i_C, 1.0, 0.0).to(g_CP.dtype), g_CP, QUARTERED)
    all_P = tl.sum(g_CP.to(tl.float32), 0)
    return tl.exp2(sum_CP), tl.exp2(all_P[None, :] - sum_CP), tl.exp2(all_P)


@triton.jit
def across(g_CP, WIDTH: tl.constexpr, QUARTERED: tl.constexpr):
    """Inside each 2 WIDTH tokens: decay from their middle for the later, to it for the earlier; at most one."""
    i_C = tl.arange(0, CHUNK)[:, None]
    block_C = i_C // WIDTH * WIDTH
    late_C = i_C // WIDTH % 2 == 1
    return decay_to(tl.where(late_C, block_C, i_C + 1), tl.where(late_C, i_C, block_C + WIDTH - 1), g_CP, QUARTERED)


@triton.jit
def around_middle(g_CP, QUARTERED: tl.constexpr):
    """Decay from the middle of each 16 tokens, above one before it; its inverse is the decay to the middle."""
    i_C, j_C = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
    middle_C = i_C // 16 * 16 + 8
    behind_CC = (j_C >= middle_C) & (j_C <= i_C)
    ahead_CC = (j_C > i_C) & (j_C < middle_C)
    sign_CC = tl.where(behind_CC, 1.0, 0.0) - tl.where(ahead_CC, 1.0, 0.0)
    return tl.exp2(product(sign_CC.to(g_CP.dtype), g_CP, QUARTERED))


@triton.jit
def separated(WIDTH: tl.constexpr):
    """Pairs of a later and an earlier token inside 2 WIDTH that the middle of these separates."""
    i_C, j_C = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
    return (i_C // WIDTH > j_C // WIDTH) & (i_C // (2 * WIDTH) == j_C // (2 * WIDTH))


@triton.jit
def close():
    """Pairs of a later, or the same, and an earlier token inside 16."""
    i_C, j_C = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
    return (i_C // 16 == j_C // 16) & (i_C >= j_C)


@triton.jit
def unit_lower_inverse(n_CC, LOW: tl.constexpr):
    """(I + N)^-1 of a strictly lower N: inverses of diagonal blocks, doubled in size until one block is left.

    Each step is exact algebra on true inverses, whose entries the delta rule keeps near one: half precision suffices.
    """
    i_C, j_C = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
    inverse_CC = tl.where(i_C == j_C, 1.0, 0.0) - tl.where(i_C // 2 == j_C // 2, n_CC, 0.0)
    for level in tl.static_range(1, 6):
        joined = i_C // (2 << level) == j_C // (2 << level)
        apart = i_C // (1 << level) != j_C // (1 << level)
        low_CC = inverse_CC.to(LOW)
        below_CC = tl.dot(tl.where(joined & apart, n_CC, 0.0).to(LOW), low_CC)
        inverse_CC -= tl.dot(low_CC, below_CC.to(LOW))
    return inverse_CC


@triton.jit
def pairs(q_CP, k_CP, g_CP, WIDE: tl.constexpr):
    """(k_i k_j, q_i k_j) times the decay from token j to token i, for i >= j; zero above the diagonal."""
    LOW: tl.constexpr = g_CP.dtype
    decay_CP = across(g_CP, 32, False)
    low_CP = (k_CP * decay_CP).to(LOW)
    kk_CC = tl.where(separated(32), tl.dot(low_CP, tl.trans(low_CP)), 0.0)
    qk_CC = tl.where(separated(32), tl.dot((q_CP * decay_CP).to(LOW), tl.trans(low_CP)), 0.0)
    decay_CP = across(g_CP, 16, False)
    low_CP = (k_CP * decay_CP).to(LOW)
    kk_CC = tl.where(separated(16), tl.dot(low_CP, tl.trans(low_CP)), kk_CC)
    qk_CC = tl.where(separated(16), tl.dot((q_CP * decay_CP).to(LOW), tl.trans(low_CP)), qk_CC)
    decay_CP = around_middle(g_CP, False)
    to_middle_PC = tl.trans((k_CP / decay_CP).to(WIDE))
    kk_CC = tl.where(close(), tl.dot((k_CP * decay_CP).to(WIDE), to_middle_PC), kk_CC)
    qk_CC = tl.where(close(), tl.dot((q_CP * decay_CP).to(WIDE), to_middle_PC), qk_CC)
    return kk_CC, qk_CC


@triton.jit
def _prepare(q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, rate_ptr, bias_ptr, start_ptr, end_ptr, w_ptr, u_ptr, qg_ptr, kg_ptr,
             a_ptr, inverse_ptr, decay_ptr, H, scale, lowest, D: tl.constexpr, P: tl.constexpr, LOW: tl.constexpr,
             KEEP_INVERSE: tl.constexpr):  # fmt: skip
    """A chunk's part without the state: w, u, decayed q and k, and the products of its own queries and keys.

    Channels come in parts of P, so that their decays fit the registers; the matrices of zeros and ones are made again
    for each part for the same reason.
    """
    head, chunk = tl.program_id(0), tl.program_id(1)
    WIDE: tl.constexpr = w_ptr.dtype.element_ty
    start = tl.load(start_ptr + chunk)
    c_C, p_P = tl.arange(0, CHUNK), tl.arange(0, P)
    here_C = c_C < tl.load(end_ptr + chunk) - start
    at_CD = offsets(start, head, H, D, D)
    k_scale_C = inverse_length(k_ptr, at_CD, here_C)
    q_scale_C = inverse_length(q_ptr, at_CD, here_C) * scale
    beta_at_C = (start + c_C).to(tl.int64) * H + head
    beta_C = tl.sigmoid(tl.load(beta_ptr + beta_at_C, mask=here_C, other=-float("inf")).to(tl.float32))
    rate = tl.load(rate_ptr + head)
    tile = chunk.to(tl.int64) * H + head
    at_CP = offsets(start, head, H, D, P)
    inside_CP = here_C[:, None]
    kk_CC = tl.zeros([CHUNK, CHUNK], dtype=tl.float32)
    qk_CC = tl.zeros([CHUNK, CHUNK], dtype=tl.float32)
    for first in tl.range(0, D, P, num_stages=1, disable_licm=True):
        raw_CP = tl.load(g_ptr + first + at_CP, mask=inside_CP, other=0.0).to(tl.float32)
        k_CP = tl.load(k_ptr + first + at_CP, mask=inside_CP, other=0.0).to(tl.float32) * k_scale_C[:, None]
        q_CP = tl.load(q_ptr + first + at_CP, mask=inside_CP, other=0.0).to(tl.float32) * q_scale_C[:, None]
        g_CP = log2_decay(raw_CP, tl.load(bias_ptr + head * D + first + p_P), rate, lowest, here_C).to(LOW)
        kk_more_CC, qk_more_CC = pairs(q_CP, k_CP, g_CP, WIDE)
        kk_CC += kk_more_CC
        qk_CC += qk_more_CC
    out_CC = tile * CHUNK * CHUNK + c_C[:, None] * CHUNK + c_C[None, :]
    tl.store(a_ptr + out_CC, qk_CC.to(WIDE))

    n_CC = tl.where(c_C[:, None] > c_C[None, :], kk_CC * beta_C[:, None], 0.0)
    inverse_CC = unit_lower_inverse(n_CC, LOW)
    if KEEP_INVERSE:
        tl.store(inverse_ptr + out_CC, inverse_CC.to(WIDE))
    solve_CC = (inverse_CC * beta_C[None, :]).to(WIDE)
    for first in tl.range(0, D, P, num_stages=1, disable_licm=True):
        raw_CP = tl.load(g_ptr + first + at_CP, mask=inside_CP, other=0.0).to(tl.float32)
        k_CP = tl.load(k_ptr + first + at_CP, mask=inside_CP, other=0.0).to(tl.float32) * k_scale_C[:, None]
        q_CP = tl.load(q_ptr + first + at_CP, mask=inside_CP, other=0.0).to(tl.float32) * q_scale_C[:, None]
        v_CP = tl.load(v_ptr + first + at_CP, mask=inside_CP, other=0.0)
        g_CP = log2_decay(raw_CP, tl.load(bias_ptr + head * D + first + p_P), rate, lowest, here_C).to(LOW)
        from_start_CP, to_end_CP, whole_P = to_both_ends(g_CP, False)
        out_CP = tile * CHUNK * D + c_C[:, None] * D + first + p_P[None, :]
        tl.store(decay_ptr + tile * D + first + p_P, whole_P)
        tl.store(kg_ptr + out_CP, (k_CP * to_end_CP).to(WIDE))
        tl.store(qg_ptr + out_CP, (q_CP * from_start_CP).to(WIDE))
        tl.store(w_ptr + out_CP, tl.dot(solve_CC, (k_CP * from_start_CP).to(WIDE)).to(WIDE))
        tl.store(u_ptr + out_CP, tl.dot(solve_CC, v_CP).to(WIDE))


@triton.jit
def _scan(w_desc, u_desc, qg_desc, kg_desc, a_desc, decay_ptr, first_ptr, start_ptr, end_ptr, begin_ptr, o_ptr,
          final_ptr, states_ptr, new_ptr, H, D: tl.constexpr, V: tl.constexpr, BEGIN: tl.constexpr,
          KEEP: tl.constexpr):  # fmt: skip
    """Walk one sequence's chunks for one head and V columns; KEEP writes each chunk's first state and new values."""
    v, head, sequence = tl.program_id(0) * V, tl.program_id(1), tl.program_id(2)
    WIDE: tl.constexpr = o_ptr.dtype.element_ty
    c_C, d_D, v_V = tl.arange(0, CHUNK), tl.arange(0, D), v + tl.arange(0, V)
    at_DV = (sequence.to(tl.int64) * H + head) * D * D + d_D[:, None] * D + v_V[None, :]
    state_DV = tl.load(begin_ptr + at_DV) if BEGIN else tl.zeros([D, V], dtype=tl.float32)
    for chunk in range(tl.load(first_ptr + sequence), tl.load(first_ptr + sequence + 1)):
        tile = chunk * H + head
        low_DV = state_DV.to(WIDE)
        new_CV = u_desc.load([tile * CHUNK, v]).to(tl.float32) - tl.dot(w_desc.load([tile * CHUNK, 0]), low_DV)
        low_CV = new_CV.to(WIDE)
        o_CV = tl.dot(qg_desc.load([tile * CHUNK, 0]), low_DV)
        o_CV = tl.dot(a_desc.load([tile * CHUNK, 0]), low_CV, o_CV)
        wide_tile = tl.cast(tile, tl.int64)
        if KEEP:
            tl.store(states_ptr + wide_tile * D * D + d_D[:, None] * D + v_V[None, :], low_DV)
            tl.store(new_ptr + wide_tile * CHUNK * D + c_C[:, None] * D + v_V[None, :], low_CV)
        decay_D = tl.load(decay_ptr + wide_tile * D + d_D)
        state_DV = tl.dot(tl.trans(kg_desc.load([tile * CHUNK, 0])), low_CV, state_DV * decay_D[:, None])
        start = tl.load(start_ptr + chunk)
        rows = tl.load(end_ptr + chunk) - start
        at_CV = ((start + c_C).to(tl.int64) * H + head)[:, None] * D + v_V[None, :]
        tl.store(o_ptr + at_CV, o_CV.to(WIDE), mask=(c_C < rows)[:, None] & (v_V < D)[None, :])
    tl.store(final_ptr + at_DV, state_DV)


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
    """Where chunks lie among packed tokens: rows start_L to end_L, sequence s from chunk first_S1[s] on."""

    start_L: torch.Tensor
    end_L: torch.Tensor
    first_S1: torch.Tensor

    @property
    def sequences(self) -> int:
        """Number of sequences."""
        return len(self.first_S1) - 1


@functools.lru_cache(maxsize=64)
def chunks_of(lengths: tuple[int, ...], device: torch.device) -> Chunks:
    """Chunks of sequences of these lengths, laid one after the other; no chunk holds tokens of two."""
    starts, ends, firsts, at = [], [], [0], 0
    for length in lengths:
        starts += range(at, at + length, CHUNK.value)
        ends += [min(at + length, start + CHUNK.value) for start in range(at, at + length, CHUNK.value)]
        firsts.append(len(starts))
        at += length
    return Chunks(*(torch.tensor(list_, dtype=torch.int32, device=device) for list_ in (starts, ends, firsts)))


def low_precision(dtype: torch.dtype) -> tl.dtype:
    """Type of products of factors that are at most one, of which fp16 keeps three bits more than bf16."""
    return tl.float32 if dtype == torch.float32 else tl.float16


def descriptor(x: torch.Tensor, columns: int) -> TensorDescriptor:
    """Tiles of a chunk's rows and *columns* of *x*, all of whose dimensions but the last count as rows."""
    return TensorDescriptor.from_tensor(x.view(-1, x.shape[-1]), [CHUNK.value, columns])


@dataclass(frozen=True)
class Prepared:
    """What `_prepare` leaves of each chunk and head."""

    w_LHCD: torch.Tensor
    u_LHCD: torch.Tensor
    qg_LHCD: torch.Tensor
    kg_LHCD: torch.Tensor
    a_LHCC: torch.Tensor
    inverse_LHCC: torch.Tensor
    decay_LHD: torch.Tensor


def prepare(inputs: Sequence[torch.Tensor], chunks: Chunks, lower_bound: float, *, keep_inverse: bool) -> Prepared:
    """Run `_prepare` over (q, k, v, raw gate, raw beta, rate, bias)."""
    q_THD = inputs[0]
    (_, H, D), L, C = q_THD.shape, len(chunks.start_L), CHUNK.value
    w, u, qg, kg = (q_THD.new_empty(L, H, C, D) for _ in range(4))
    a = q_THD.new_empty(L, H, C, C)
    inverse = torch.empty_like(a) if keep_inverse else a
    found = Prepared(w, u, qg, kg, a, inverse, q_THD.new_empty(L, H, D, dtype=torch.float32))
    arguments = (*inputs, chunks.start_L, chunks.end_L, w, u, qg, kg, a, inverse, found.decay_LHD, H, D**-0.5)
    flags = {"D": D, "P": min(D, PART), "LOW": low_precision(q_THD.dtype), "KEEP_INVERSE": keep_inverse}
    _prepare[(H, L)](*arguments, lower_bound * LOG2_E, **flags, **PREPARE_LAUNCH)
    return found


def scan(
    found: Prepared,
    chunks: Chunks,
    o_THD: torch.Tensor,
    begin_SHDD: torch.Tensor | None = None,
    *,
    keep: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Fill *o_THD*; (last states, each chunk's first state, each chunk's new values), the latter two only if *keep*."""
    L, H, C, D = found.w_LHCD.shape
    V = min(SCAN_COLUMNS, D)
    final_SHDD = o_THD.new_empty(chunks.sequences, H, D, D, dtype=torch.float32)
    states_LHDD = o_THD.new_empty(L, H, D, D) if keep else o_THD
    new_LHCD = o_THD.new_empty(L, H, C, D) if keep else o_THD
    tiles = [descriptor(found.w_LHCD, D), descriptor(found.u_LHCD, V)]
    tiles += [descriptor(found.qg_LHCD, D), descriptor(found.kg_LHCD, D), descriptor(found.a_LHCC, C)]
    begin = final_SHDD if begin_SHDD is None else begin_SHDD
    where = (found.decay_LHD, chunks.first_S1, chunks.start_L, chunks.end_L, begin)
    grid = (D // V, H, chunks.sequences)
    flags = {"D": D, "V": V, "BEGIN": begin_SHDD is not None, "KEEP": keep}
    _scan[grid](*tiles, *where, o_THD, final_SHDD, states_LHDD, new_LHCD, H, **flags, **SCAN_LAUNCH)
    return final_SHDD, states_LHDD, new_LHCD


def checked(inputs: Sequence[torch.Tensor], lengths: Sequence[int] | None, lower_bound: float) -> Chunks:
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
    return chunks_of(lengths, inputs[0].device)


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
    final_SHDD, _, _ = scan(prepare(inputs, chunks, lower_bound, keep_inverse=False), chunks, o_THD, begin_SHDD)
    return o_THD, final_SHDD


def kda_decode(inputs: Sequence[torch.Tensor], state_SHDD: torch.Tensor, lower_bound: float = -5.0) -> torch.Tensor:
    """One new token for each sequence; *inputs* as of `kda_forward` with S for T; updates *state_SHDD*, in fp32."""
    S, H, D = inputs[0].shape
    o_SHD = torch.empty_like(inputs[2])
    V = min(DECODE_COLUMNS, D)
    _decode[(D // V, H, S)](*inputs, state_SHDD, o_SHD, H, D**-0.5, lower_bound * LOG2_E, D=D, V=V, num_warps=4)
    return o_SHD
