"""Cross-entropy of a linear head that never holds all logits: a few rows at a time, their vocabulary in pieces.

Both gradients are taken in the forward pass, while the logits of some rows are at hand: 6 N D V FLOPs as in the plain
loss where all their vocabulary fits, and 2 N D V more, less one piece, where it has to come in pieces and all but the
last are computed again. `cut_loss` takes as many rows as *budget_bytes* hold logits of, whatever the vocabulary, and
sums the gradient of the weight over them in the weight's own type; `chunk_loss` takes a given number of rows.
`logit_loss` takes logits that somebody else made, all of them, and leaves their gradient in their place.

The products are the vendor's matmuls; what surrounds them are Triton kernels that read the logits once.

Legend: N rows, D width, V vocabulary; B vocabulary of one piece, R rows at a time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

IGNORED = -100
BUDGET_BYTES = 96 * 2**20
CHUNK_ROWS = 1024
WHOLE_TILES = 128
"""Rows come in multiples of this where there are as many, and vocabulary in multiples of half of it."""
LEAST_ROWS = 384
"""Rows at a time below which adding to the weight's gradient costs more than computing part of the logits again."""
ROWS_IN_PIECES = 512
BLOCK = 8192
LAUNCH = {"num_warps": 16}


@triton.jit
def _merge(logits_ptr, label_ptr, max_ptr, sum_ptr, picked_ptr, first, B, BLOCK_B: tl.constexpr):
    """Take one block of a row's logits into its running maximum, its sum of exponentials and its label's logit."""
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(label_ptr + row) - first
    high, total = tl.load(max_ptr + row), tl.load(sum_ptr + row)
    for start in range(0, B, BLOCK_B):
        b_B = start + tl.arange(0, BLOCK_B)
        logit_B = tl.load(logits_ptr + row * B + b_B, mask=b_B < B, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(high, tl.max(logit_B, 0))
        total = total * tl.exp(high - higher) + tl.sum(tl.exp(logit_B - higher), 0)
        high = higher
    tl.store(max_ptr + row, high)
    tl.store(sum_ptr + row, total)
    here = (label >= 0) & (label < B)
    picked = tl.load(logits_ptr + row * B + tl.where(here, label, 0)).to(tl.float32)
    tl.store(picked_ptr + row, picked, mask=here)


@triton.jit
def _gradient(logits_ptr, label_ptr, lse_ptr, scale_ptr, first, B, IGNORED: tl.constexpr, BLOCK_B: tl.constexpr):
    """Overwrite one block of a row's logits with (softmax - [is label]) * scale; zero where the label is ignored."""
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(label_ptr + row)
    lse = tl.load(lse_ptr + row)
    scale = tl.where(label == IGNORED, 0.0, tl.load(scale_ptr))
    for start in range(0, B, BLOCK_B):
        b_B = start + tl.arange(0, BLOCK_B)
        logit_B = tl.load(logits_ptr + row * B + b_B, mask=b_B < B, other=-float("inf")).to(tl.float32)
        gradient_B = (tl.exp(logit_B - lse) - tl.where(b_B == label - first, 1.0, 0.0)) * scale
        tl.store(logits_ptr + row * B + b_B, gradient_B.to(logits_ptr.dtype.element_ty), mask=b_B < B)


def _pieces(total: int, at_most: int, multiple: int) -> list[slice]:
    """Slices of nearly one size, at most about *at_most* and a multiple of *multiple* long, the last one shorter."""
    count = triton.cdiv(total, max(1, at_most))
    size = triton.cdiv(triton.cdiv(total, count), multiple) * multiple
    return [slice(at, min(total, at + size)) for at in range(0, total, size)]


def sides(N: int, D: int, V: int, budget_bytes: int, element_bytes: int) -> tuple[int, int]:
    """(rows at a time, vocabulary of a piece): whole vocabularies of enough rows, or pieces beside an fp32 sum."""
    if (rows := budget_bytes // (V * element_bytes)) >= min(N, LEAST_ROWS):
        return rows // WHOLE_TILES * WHOLE_TILES or rows, V
    rows = max(1, min(N, ROWS_IN_PIECES, budget_bytes // (8 * D)))
    return rows, max(1, (budget_bytes - rows * D * 4) // (rows * element_bytes))


def _add_product(sum_MN: torch.Tensor, a_MK: torch.Tensor, b_KN: torch.Tensor, *, first: bool) -> None:
    """sum_MN += a_MK @ b_KN, or = if *first*, with factors narrower than the sum where the GPU's matmul takes them."""
    if sum_MN.dtype == a_MK.dtype:
        torch.addmm(sum_MN, a_MK, b_KN, beta=0 if first else 1, out=sum_MN)
    elif sum_MN.is_cuda:
        torch.addmm(sum_MN, a_MK, b_KN, beta=0 if first else 1, out_dtype=sum_MN.dtype, out=sum_MN)
    else:
        sum_MN.copy_((0 if first else sum_MN) + a_MK.to(sum_MN.dtype) @ b_KN.to(sum_MN.dtype))


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_ND, w_VD, label_N, rows_at_once, words_at_once):
        N, V = len(x_ND), len(w_VD)
        counts_N = label_N != IGNORED
        count = counts_N.sum()
        max_N, picked_N = x_ND.new_full((N,), -torch.inf, dtype=torch.float32), x_ND.new_zeros(N, dtype=torch.float32)
        sum_N = torch.zeros_like(picked_N)
        ctx.gradients = [
            torch.empty_like(x) if needed else None
            for x, needed in zip((x_ND, w_VD), ctx.needs_input_grad[:2], strict=True)
        ]
        row_slices = _pieces(N, rows_at_once, WHOLE_TILES if rows_at_once >= WHOLE_TILES else 1)
        word_slices = _pieces(V, words_at_once, WHOLE_TILES // 2)
        room = x_ND.new_empty(row_slices[0].stop * word_slices[0].stop)
        for rows in row_slices:
            for words in word_slices:
                logits_RB = _logits(x_ND[rows], w_VD[words], room)
                running = (label_N[rows], max_N[rows], sum_N[rows], picked_N[rows])
                _merge[(len(logits_RB),)](logits_RB, *running, words.start, logits_RB.shape[1], BLOCK_B=BLOCK, **LAUNCH)
            if any(ctx.needs_input_grad):
                known = (label_N[rows], max_N[rows] + sum_N[rows].log(), 1.0 / count.float())
                _differentiate((x_ND, w_VD), rows, word_slices, room, known, ctx.gradients)
        return torch.where(counts_N, max_N + sum_N.log() - picked_N, 0.0).sum() / count

    @staticmethod
    def backward(ctx, dloss):
        gradients, ctx.gradients = ctx.gradients, []
        # The operator for lists moves vectors; that for one tensor and a scalar of the GPU moves single numbers.
        if there := [d for d in gradients if d is not None]:
            torch._foreach_mul_(there, dloss.to(there[0].dtype))
        return *gradients, None, None, None


def _differentiate(
    factors: tuple[torch.Tensor, torch.Tensor],
    rows: slice,
    word_slices: list[slice],
    room: torch.Tensor,
    known: tuple[torch.Tensor, ...],
    gradients: list[torch.Tensor | None],
) -> None:
    """Both gradients of some rows, from the last piece of their logits, which *room* holds, to the first.

    *known*: the rows' labels, their logs of sums, and the scale of all gradients. That of the rows is summed over
    pieces in fp32.
    """
    (x_ND, w_VD), (dx_ND, dw_VD) = factors, gradients
    label_R, lse_R, scale = known
    dx_RD = None if dx_ND is None else dx_ND[rows]
    if dx_ND is not None and len(word_slices) > 1:
        dx_RD = x_ND.new_empty(len(label_R), x_ND.shape[1], dtype=torch.float32)
    for words in reversed(word_slices):
        last, R, B = words is word_slices[-1], len(label_R), words.stop - words.start
        dlogits_RB = room[: R * B].view(R, B) if last else _logits(x_ND[rows], w_VD[words], room)
        _gradient[(R,)](dlogits_RB, label_R, lse_R, scale, words.start, B, IGNORED=IGNORED, BLOCK_B=BLOCK, **LAUNCH)
        if dx_RD is not None:
            _add_product(dx_RD, dlogits_RB, w_VD[words], first=last)
        if dw_VD is not None:
            _add_product(dw_VD[words], dlogits_RB.T, x_ND[rows], first=rows.start == 0)
    if dx_ND is not None and len(word_slices) > 1:
        dx_ND[rows] = dx_RD


def _logits(x_RD: torch.Tensor, w_BD: torch.Tensor, room: torch.Tensor) -> torch.Tensor:
    """Logits of some rows and words, in *room*."""
    R, B = len(x_RD), len(w_BD)
    return torch.mm(x_RD, w_BD.T, out=room[: R * B].view(R, B))


def cut_loss(
    x_ND: torch.Tensor, w_VD: torch.Tensor, label_N: torch.Tensor, budget_bytes: int = BUDGET_BYTES
) -> torch.Tensor:
    """Mean cross-entropy of x W^T against the labels other than -100; it may be differentiated once.

    *budget_bytes* bounds what it allocates beside the gradients. A weight that needs no gradient costs no product.
    """
    at_once = sides(*x_ND.shape, len(w_VD), budget_bytes, x_ND.element_size())
    return _Loss.apply(x_ND.contiguous(), w_VD.contiguous(), label_N.contiguous(), *at_once)


def chunk_loss(
    x_ND: torch.Tensor, w_VD: torch.Tensor, label_N: torch.Tensor, chunk_rows: int = CHUNK_ROWS
) -> torch.Tensor:
    """The same loss with all logits of at most *chunk_rows* rows at a time."""
    return _Loss.apply(x_ND.contiguous(), w_VD.contiguous(), label_N.contiguous(), chunk_rows, len(w_VD))


class _LogitLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_NV, label_N):
        N, V = logits_NV.shape
        counts_N = label_N != IGNORED
        max_N, sum_N = logits_NV.new_full((N,), -torch.inf, dtype=torch.float32), logits_NV.new_zeros(N).float()
        picked_N = torch.zeros_like(sum_N)
        _merge[(N,)](logits_NV, label_N, max_N, sum_N, picked_N, 0, V, BLOCK_B=BLOCK, **LAUNCH)
        lse_N, scale = max_N + sum_N.log(), 1.0 / counts_N.sum().float()
        _gradient[(N,)](logits_NV, label_N, lse_N, scale, 0, V, IGNORED=IGNORED, BLOCK_B=BLOCK, **LAUNCH)
        ctx.gradient = logits_NV.detach()
        return torch.where(counts_N, lse_N - picked_N, 0.0).sum() * scale

    @staticmethod
    def backward(ctx, dloss):
        gradient, ctx.gradient = ctx.gradient, None
        torch._foreach_mul_([gradient], dloss.to(gradient.dtype))
        return gradient, None


def logit_loss(logits_NV: torch.Tensor, label_N: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of logits against the labels other than -100; it may be differentiated once.

    The logits are overwritten by their gradient, so that nobody else may read them: a linear layer does not.
    """
    return _LogitLoss.apply(logits_NV, label_N.contiguous())
