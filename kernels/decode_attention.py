"""Attention of one new token of each sequence to its cache, in pages: grouped heads, or absorbed latents.

A sequence's context is split among programs, so that few long sequences fill the GPU too: each program takes some pages
of one sequence for the query heads that share a key head, and keeps the largest score, the sum of the weights and the
weighed sum of values. A second kernel joins the parts (Dao et al., "Flash-Decoding", 2023). Of absorbed latents the
first 512 channels are value as well as key, and the rotated channels beside them are key alone; of grouped heads, keys
and values are tensors of their own.

Legend: B sequences, H query heads, G key heads, R query heads of one program, P pages of a sequence, N tokens of a
page, D channels of a key that are in powers of two, E rotated channels, V channels of a value, S parts of a sequence.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.device import multiprocessors

PAGE = 64
"""Tokens of a page."""
LEAST_ROWS = 16
"""Rows that the tensor cores multiply at least."""
LATENT_ROWS = 64
"""Query heads of one program over latents, at most."""
PROGRAMS_PER_MULTIPROCESSOR = 4
MOST_PARTS = 64
LOG2_E = 1.4426950408889634


@triton.jit
def part_kernel(
    q_ptr, key_ptr, value_ptr, rotated_ptr, table_ptr, length_ptr, sum_ptr, top_ptr, scale, pages, parts, heads, groups,
    D: tl.constexpr, E: tl.constexpr, V: tl.constexpr, N: tl.constexpr, R: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """One part of one sequence for R query heads; SHARED: values are the first channels of the keys."""
    sequence, block, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    of_group = heads // groups
    blocks = (of_group + R - 1) // R
    group = block // blocks
    h_R = block % blocks * R + tl.arange(0, R)
    there_R = h_R < of_group
    row_R = sequence * heads + group * of_group + h_R
    d_D, v_V, n_N = tl.arange(0, D), tl.arange(0, V), tl.arange(0, N)
    width: tl.constexpr = D + E
    q_RD = tl.load(q_ptr + row_R[:, None] * width + d_D[None, :], mask=there_R[:, None], other=0.0)
    if E:
        e_E = tl.arange(0, E)
        q_RE = tl.load(q_ptr + row_R[:, None] * width + D + e_E[None, :], mask=there_R[:, None], other=0.0)
    length = tl.load(length_ptr + sequence)
    each = (tl.cdiv(length, N) + parts - 1) // parts
    first, last = part * each, tl.minimum((part + 1) * each, tl.cdiv(length, N))
    top_R = tl.full([R], -float("inf"), dtype=tl.float32)
    total_R = tl.zeros([R], dtype=tl.float32)
    sum_RV = tl.zeros([R, V], dtype=tl.float32)
    for page in range(first, last):
        at_N = (tl.load(table_ptr + sequence * pages + page).to(tl.int64) * N + n_N) * groups + group
        seen_N = page * N + n_N < length
        k_ND = tl.load(key_ptr + at_N[:, None] * width + d_D[None, :], mask=seen_N[:, None], other=0.0)
        score_RN = tl.dot(q_RD, tl.trans(k_ND))
        if E:
            k_NE = tl.load(rotated_ptr + at_N[:, None] * width + e_E[None, :], mask=seen_N[:, None], other=0.0)
            score_RN += tl.dot(q_RE, tl.trans(k_NE))
        score_RN = tl.where(seen_N[None, :], score_RN * scale, -float("inf"))
        higher_R = tl.maximum(top_R, tl.max(score_RN, 1))
        weight_RN = tl.exp2(score_RN - higher_R[:, None])
        kept_R = tl.exp2(top_R - higher_R)
        if SHARED:
            v_NV = k_ND
        else:
            v_NV = tl.load(value_ptr + at_N[:, None] * V + v_V[None, :], mask=seen_N[:, None], other=0.0)
        total_R = total_R * kept_R + tl.sum(weight_RN, 1)
        sum_RV = sum_RV * kept_R[:, None] + tl.dot(weight_RN.to(v_NV.dtype), v_NV)
        top_R = higher_R
    out_R = row_R * parts + part
    mean_RV = sum_RV / tl.where(total_R > 0, total_R, 1.0)[:, None]
    tl.store(sum_ptr + out_R[:, None] * V + v_V[None, :], mean_RV, mask=there_R[:, None])
    top_R = tl.where(total_R > 0, top_R + tl.log2(tl.where(total_R > 0, total_R, 1.0)), -float("inf"))
    tl.store(top_ptr + out_R, top_R, mask=there_R)


@triton.jit
def join_kernel(sum_ptr, top_ptr, out_ptr, parts, V: tl.constexpr, S: tl.constexpr):
    """Parts of one query head, weighed by what their scores add up to."""
    row, v_V, s_S = tl.program_id(0), tl.arange(0, V), tl.arange(0, S)
    top_S = tl.load(top_ptr + row * parts + s_S, mask=s_S < parts, other=-float("inf"))
    weight_S = tl.exp2(top_S - tl.max(top_S, 0))
    at_SV = (row * parts + s_S)[:, None] * V + v_V[None, :]
    part_SV = tl.load(sum_ptr + at_SV, mask=(s_S < parts)[:, None], other=0.0)
    out_V = tl.sum(part_SV * weight_S[:, None], 0) / tl.sum(weight_S, 0)
    tl.store(out_ptr + row * V + v_V, out_V.to(out_ptr.dtype.element_ty))


def grouped(
    q_BHD: torch.Tensor, key_PNGD: torch.Tensor, value_PNGD: torch.Tensor, table_BP: torch.Tensor,
    length_B: torch.Tensor, scale: float,
) -> torch.Tensor:  # fmt: skip
    """[B, H, D] results of heads that share keys and values in groups; the *table* names each sequence's pages."""
    groups, width = key_PNGD.shape[2:]
    return _run(q_BHD, key_PNGD, value_PNGD, table_BP, length_B, scale, groups, (width, 0, width))


def latent(
    q_BHD: torch.Tensor, key_PND: torch.Tensor, table_BP: torch.Tensor, length_B: torch.Tensor, scale: float, value: int
) -> torch.Tensor:
    """[B, H, value] results of heads that all read the same latents, whose first *value* channels are the values."""
    return _run(q_BHD, key_PND, key_PND, table_BP, length_B, scale, 1, (value, key_PND.shape[2] - value, value))


def _run(
    q_BHD: torch.Tensor, key: torch.Tensor, value: torch.Tensor, table_BP: torch.Tensor, length_B: torch.Tensor,
    scale: float, groups: int, widths: tuple[int, int, int],
) -> torch.Tensor:  # fmt: skip
    (B, H, _), (D, E, V) = q_BHD.shape, widths
    rows = min(LATENT_ROWS, max(LEAST_ROWS, triton.next_power_of_2(H // groups)))
    blocks = groups * triton.cdiv(H // groups, rows)
    parts = parts_of(B * blocks, table_BP.shape[1], multiprocessors(q_BHD))
    sums = torch.empty(B, H, parts, V, device=q_BHD.device, dtype=torch.float32)
    tops = torch.empty(B, H, parts, device=q_BHD.device, dtype=torch.float32)
    out = torch.empty(B, H, V, device=q_BHD.device, dtype=q_BHD.dtype)
    rotated = key[..., D:] if E else key
    part_kernel[B, blocks, parts](
        q_BHD, key, value, rotated, table_BP, length_B, sums, tops, scale * LOG2_E, table_BP.shape[1], parts, H, groups,
        D=D, E=E, V=V, N=PAGE, R=rows, SHARED=bool(E), num_warps=8 if E else 4, num_stages=2 if E else 3,
    )  # fmt: skip
    join_kernel[B * H,](sums, tops, out, parts, V=V, S=triton.next_power_of_2(parts))
    return out


def parts_of(programs: int, pages: int, units: int) -> int:
    """Parts of each sequence, so that *programs* of each fill so many *units*, with a page each at least."""
    return max(1, min(MOST_PARTS, pages, PROGRAMS_PER_MULTIPROCESSOR * units // programs))
