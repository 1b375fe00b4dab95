"""Grouped matrix products: each expert's rows times that expert's weight, experts of any number of rows, none included.

Rows of one expert lie together, expert after expert; where each ends is read on the device, so the host never waits.
Persistent programs walk the tiles of one expert after the other: an expert of few rows costs its tiles and nothing for
the size of the largest. Tiles are loaded by the bulk copy engine, which fills with zeros past the end of a tensor; rows
of the next expert at the end of a tile are computed and not stored, or filled with zeros where rows are summed. Widths
must be multiples of 16 bytes.

Legend: M rows, E experts, K width in, N width out; w_EKN weights.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.ragged_tma import create_ragged_descriptor, load_ragged
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.device import multiprocessors

GROUPED_TILES = 8
"""Row tiles that share a column of weights while it is in the cache."""
FEW_ROWS = 96
"""Mean rows of an expert below which small tiles waste less than large ones gain."""


@triton.jit
def _rows_kernel(x_desc, w_desc, y_ptr, ends_ptr, E, N, K, TRANSPOSED: tl.constexpr, GROUPED: tl.constexpr,
                 BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    """Rows y = x w_e, or x w_e^T if TRANSPOSED, for the rows of each expert e."""
    tile = tl.program_id(0)
    tiles_n = tl.cdiv(N, BLOCK_N)
    begin = 0
    first = 0
    for e in range(E):
        end = tl.load(ends_ptr + e)
        tiles_m = tl.cdiv(end - begin, BLOCK_M)
        past = first + tiles_m * tiles_n
        while tile < past:
            local = tile - first
            group = local // (GROUPED * tiles_n)
            height = tl.minimum(tiles_m - group * GROUPED, GROUPED)
            within = local - group * GROUPED * tiles_n
            m = begin + (group * GROUPED + within % height) * BLOCK_M
            n = (within // height) * BLOCK_N
            sum_MN = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
            for k in range(0, K, BLOCK_K):
                x_MK = x_desc.load([m, k])
                w_KN = tl.trans(w_desc.load([e * N + n, k])) if TRANSPOSED else w_desc.load([e * K + k, n])
                sum_MN = tl.dot(x_MK, w_KN, sum_MN)
            m_M = m + tl.arange(0, BLOCK_M)
            n_N = n + tl.arange(0, BLOCK_N)
            at_MN = y_ptr + m_M[:, None].to(tl.int64) * N + n_N[None, :]
            tl.store(at_MN, sum_MN.to(y_ptr.dtype.element_ty), mask=(m_M < end)[:, None] & (n_N < N)[None, :])
            tile += tl.num_programs(0)
        first = past
        begin = end


@triton.jit
def _order_kernel(ends_ptr, order_ptr, E, EXPERTS: tl.constexpr):
    """Experts by rows, the one of most rows first: what takes longest is started first."""
    e_E = tl.arange(0, EXPERTS)
    end_E = tl.load(ends_ptr + e_E, mask=e_E < E, other=0)
    rows_E = end_E - tl.load(ends_ptr + e_E - 1, mask=(e_E > 0) & (e_E < E), other=0)
    more_EE = rows_E[None, :] > rows_E[:, None]
    same_EE = (rows_E[None, :] == rows_E[:, None]) & (e_E[None, :] < e_E[:, None])
    place_E = tl.sum(((more_EE | same_EE) & (e_E < E)[None, :]).to(tl.int32), 1)
    tl.store(order_ptr + place_E, e_E, mask=e_E < E)


@triton.jit
def _steps(ends_ptr, order_ptr, tiles, E, EXPERTS: tl.constexpr, BLOCK_M: tl.constexpr):
    """Steps of all of this program's tiles, at least one for each; an expert has *tiles* of them."""
    o_E = tl.arange(0, EXPERTS)
    e_E = tl.load(order_ptr + o_E, mask=o_E < E, other=0)
    rows_E = tl.load(ends_ptr + e_E) - tl.load(ends_ptr + e_E - 1, mask=e_E > 0, other=0)
    before = tl.num_programs(0) - 1 - tl.program_id(0)
    mine_E = ((o_E + 1) * tiles + before) // tl.num_programs(0) - (o_E * tiles + before) // tl.num_programs(0)
    return tl.sum(tl.where(o_E < E, mine_E * tl.maximum(tl.cdiv(rows_E, BLOCK_M), 1), 0), 0)


@triton.jit
def _place(local, tiles_k, tiles_n, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr, GROUPED: tl.constexpr):
    """First row and column of an expert's tile."""
    group = local // (GROUPED * tiles_n)
    height = tl.minimum(tiles_k - group * GROUPED, GROUPED)
    within = local - group * GROUPED * tiles_n
    return (group * GROUPED + within % height) * BLOCK_K, (within // height) * BLOCK_N


@triton.jit
def _weights_kernel(x_desc, dy_desc, dw_desc, ends_ptr, order_ptr, E, N, K, GROUPED: tl.constexpr,
                    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
                    EXPERTS: tl.constexpr):  # fmt: skip
    """dw_e = x^T dy over the rows of expert e: zeros where it has none.

    The steps of all tiles are one loop, so that a tile's first loads are under way while the tile before is multiplied,
    and that one is stored while the next is.
    """
    tiles_k, tiles_n = tl.cdiv(K, BLOCK_K), tl.cdiv(N, BLOCK_N)
    tiles = tiles_k * tiles_n
    at = tl.program_id(0) - tl.num_programs(0)
    e, k, n, m, begin, rows = 0, 0, 0, 0, 0, 0
    sum_KN = tl.zeros([BLOCK_K, BLOCK_N], dtype=tl.float32)
    for _ in range(_steps(ends_ptr, order_ptr, tiles, E, EXPERTS, BLOCK_M)):
        m += BLOCK_M
        if m >= rows:
            at += tl.num_programs(0)
            e = tl.load(order_ptr + at // tiles)
            k, n = _place(at % tiles, tiles_k, tiles_n, BLOCK_K, BLOCK_N, GROUPED)
            begin = tl.load(ends_ptr + e - 1, mask=e > 0, other=0)
            rows = tl.load(ends_ptr + e) - begin
            m = 0
        x_MK, dy_MN = load_ragged(x_desc, begin, rows, [m, k]), load_ragged(dy_desc, begin, rows, [m, n])
        sum_KN = tl.dot(tl.trans(x_MK), dy_MN, sum_KN)
        if m + BLOCK_M >= rows:
            dw_desc.store([e, k, n], tl.reshape(sum_KN.to(dw_desc.dtype), [1, BLOCK_K, BLOCK_N]))
            sum_KN = tl.zeros([BLOCK_K, BLOCK_N], dtype=tl.float32)


def _tile(rows: int, experts: int) -> tuple[dict[str, int], dict[str, int]]:
    """(sides of a tile, launch options) for *rows* over *experts*: 128 x 256 unless experts have few rows."""
    if rows <= FEW_ROWS * experts:
        return {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 128}, {"num_warps": 4, "num_stages": 4}
    return {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64}, {"num_warps": 8, "num_stages": 4}


def _weights_tile(rows: int, experts: int) -> tuple[tuple[int, int, int], int, dict[str, int]]:
    """(sides of a tile of the gradient of weights, programs a multiprocessor, launch options) for *rows* of *experts*.

    Few rows are bound by the store of tiles, of which two programs have more under way.
    """
    if rows <= FEW_ROWS * experts:
        return (32, 64, 256), 2, {"num_warps": 4, "num_stages": 3}
    return (64, 128, 256), 1, {"num_warps": 8, "num_stages": 3}


def rows_product(x_MK: torch.Tensor, w_EKN: torch.Tensor, ends_E: torch.Tensor, *, transposed: bool) -> torch.Tensor:
    """Each expert's rows times its weight, or its transpose; rows past the last expert's stay unwritten."""
    E, N, (M, K) = len(w_EKN), w_EKN.shape[1 if transposed else 2], x_MK.shape
    tile, launch = _tile(M, E)
    y_MN = x_MK.new_empty(M, N)
    if M == 0:
        return y_MN
    block_w = [tile["BLOCK_N"], tile["BLOCK_K"]] if transposed else [tile["BLOCK_K"], tile["BLOCK_N"]]
    x_desc = TensorDescriptor.from_tensor(x_MK, [tile["BLOCK_M"], tile["BLOCK_K"]])
    w_desc = TensorDescriptor.from_tensor(w_EKN.flatten(0, 1), block_w)
    flags = {"TRANSPOSED": transposed, "GROUPED": GROUPED_TILES}
    _rows_kernel[(multiprocessors(x_MK),)](x_desc, w_desc, y_MN, ends_E, E, N, K, **flags, **tile, **launch)
    return y_MN


def weights_product(x_MK: torch.Tensor, dy_MN: torch.Tensor, ends_E: torch.Tensor) -> torch.Tensor:
    """[E, K, N]: x^T dy over each expert's rows."""
    E, K, N = len(ends_E), x_MK.shape[1], dy_MN.shape[1]
    if len(x_MK) == 0:
        return x_MK.new_zeros(E, K, N)
    (block_m, block_k, block_n), programs, launch = _weights_tile(len(x_MK), E)
    dw_EKN = x_MK.new_empty(E, K, N)
    x_desc = create_ragged_descriptor(x_MK, [block_m, block_k])
    dy_desc = create_ragged_descriptor(dy_MN, [block_m, block_n])
    sides = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "GROUPED": GROUPED_TILES}
    sides["EXPERTS"] = triton.next_power_of_2(E)
    dw_desc = TensorDescriptor.from_tensor(dw_EKN, [1, block_k, block_n])
    tiles = E * triton.cdiv(K, block_k) * triton.cdiv(N, block_n)
    order_E = torch.empty_like(ends_E)
    _order_kernel[(1,)](ends_E, order_E, E, EXPERTS=sides["EXPERTS"], num_warps=1)
    grid = (min(tiles, programs * multiprocessors(x_MK)),)
    _weights_kernel[grid](x_desc, dy_desc, dw_desc, ends_E, order_E, E, N, K, **sides, **launch)
    return dw_EKN


class _GroupedGemm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_MK, w_EKN, ends_E):
        ctx.save_for_backward(x_MK if ctx.needs_input_grad[1] else None, w_EKN, ends_E)
        return rows_product(x_MK, w_EKN, ends_E, transposed=False)

    @staticmethod
    def backward(ctx, dy_MN):
        x_MK, w_EKN, ends_E = ctx.saved_tensors
        dy_MN = dy_MN.contiguous()
        dx_MK = rows_product(dy_MN, w_EKN, ends_E, transposed=True) if ctx.needs_input_grad[0] else None
        dw_EKN = weights_product(x_MK, dy_MN, ends_E) if ctx.needs_input_grad[1] else None
        return dx_MK, dw_EKN, None


def grouped_gemm(x_MK: torch.Tensor, w_EKN: torch.Tensor, ends_E: torch.Tensor) -> torch.Tensor:
    """Rows of expert e, which end before row ends_E[e], times w_EKN[e]; differentiable in both.

    The rows are kept for the gradient of the weights alone: not where these are frozen.
    *ends_E* is int32, does not fall, and its last entry is the number of rows.
    """
    if any(side * x_MK.element_size() % 16 for side in w_EKN.shape[1:]):
        message = f"weights of {tuple(w_EKN.shape[1:])} in {x_MK.dtype}: each side must be a multiple of 16 bytes"
        raise ValueError(message)
    return _GroupedGemm.apply(x_MK.contiguous(), w_EKN.contiguous(), ends_E)
