"""Cross-entropy of a linear head that never holds all logits: cut along the vocabulary, or chunked along the sequence.

`cut_loss` walks blocks of rows and of vocabulary. The forward pass keeps each row's running maximum and sum and
nothing else; the backward pass computes the logits of a block again, turns them into their gradient in place, and
feeds it to two products: 8 N D V FLOPs in all against 6 of the plain loss, in *budget_bytes* of memory whatever the
vocabulary. The gradient of the rows is summed over blocks in fp32, that of the weight over blocks of rows in its own
type. `chunk_loss` holds whole rows of logits, a few at a time, and takes both gradients in the forward pass: 6 N D V
FLOPs, more memory, and a sum over chunks in the type of the weight.

The products are the vendor's matmuls; what surrounds them are Triton kernels that read the logits once.

Legend: N rows, D width, V vocabulary; B vocabulary of one block, R rows of one block.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

IGNORED = -100
BUDGET_BYTES = 96 * 2**20
SUM_SHARE = 1 / 3
CHUNK_ROWS = 1024
BLOCK = 4096
WHOLE_ROWS_BLOCK = 8192


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


def _forward_pieces(N: int, V: int, budget_bytes: int, element_bytes: int) -> tuple[list[slice], list[slice]]:
    rows = _pieces(N, budget_bytes // (BLOCK * element_bytes), 1)
    most_rows = rows[0].stop
    return rows, _pieces(V, budget_bytes // (most_rows * element_bytes), 64)


def _backward_pieces(N: int, D: int, V: int, budget_bytes: int, element_bytes: int) -> tuple[list[slice], list[slice]]:
    """A share of the budget for the fp32 gradient of a block of rows, the rest for its logits."""
    rows = _pieces(N, int(budget_bytes * SUM_SHARE) // (4 * D), 1)
    most_rows = rows[0].stop
    left = budget_bytes - most_rows * D * 4
    return rows, _pieces(V, left // (most_rows * element_bytes), 64)


def _add_product(sum_MN: torch.Tensor, a_MK: torch.Tensor, b_KN: torch.Tensor) -> None:
    """sum_MN += a_MK @ b_KN, with factors narrower than the sum where the GPU's matmul takes them so."""
    if sum_MN.dtype == a_MK.dtype:
        torch.addmm(sum_MN, a_MK, b_KN, out=sum_MN)
    elif sum_MN.is_cuda:
        torch.addmm(sum_MN, a_MK, b_KN, out_dtype=sum_MN.dtype, out=sum_MN)
    else:
        sum_MN += a_MK.to(sum_MN.dtype) @ b_KN.to(sum_MN.dtype)


class _CutLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_ND, w_VD, label_N, budget_bytes):
        N, V = x_ND.shape[0], w_VD.shape[0]
        max_N, picked_N = x_ND.new_full((N,), -torch.inf, dtype=torch.float32), x_ND.new_zeros(N, dtype=torch.float32)
        sum_N = torch.zeros_like(picked_N)
        row_slices, word_slices = _forward_pieces(N, V, budget_bytes, x_ND.element_size())
        room = x_ND.new_empty(row_slices[0].stop * word_slices[0].stop)
        for rows in row_slices:
            for words in word_slices:
                R, B = rows.stop - rows.start, words.stop - words.start
                logits_RB = torch.mm(x_ND[rows], w_VD[words].T, out=room[: R * B].view(R, B))
                running = (label_N[rows], max_N[rows], sum_N[rows], picked_N[rows])
                _merge[(R,)](logits_RB, *running, words.start, B, BLOCK_B=BLOCK, num_warps=8)
        counts_N = label_N != IGNORED
        lse_N, count = max_N + sum_N.log(), counts_N.sum()
        ctx.save_for_backward(x_ND, w_VD, label_N, lse_N, count)
        ctx.budget_bytes = budget_bytes
        return torch.where(counts_N, lse_N - picked_N, 0.0).sum() / count

    @staticmethod
    def backward(ctx, dloss):
        x_ND, w_VD, label_N, lse_N, count = ctx.saved_tensors
        (N, D), V = x_ND.shape, w_VD.shape[0]
        dx_ND = torch.empty_like(x_ND) if ctx.needs_input_grad[0] else None
        dw_VD = torch.empty_like(w_VD) if ctx.needs_input_grad[1] else None
        scale = (dloss / count).float()
        row_slices, word_slices = _backward_pieces(N, D, V, ctx.budget_bytes, x_ND.element_size())
        room = x_ND.new_empty(row_slices[0].stop * word_slices[0].stop)
        sum_RD = x_ND.new_empty(row_slices[0].stop, D, dtype=torch.float32)
        for rows in row_slices:
            R = rows.stop - rows.start
            sum_RD = sum_RD[:R].zero_()
            for words in word_slices:
                B = words.stop - words.start
                dlogits_RB = torch.mm(x_ND[rows], w_VD[words].T, out=room[: R * B].view(R, B))
                known = (label_N[rows], lse_N[rows], scale, words.start, B)
                _gradient[(R,)](dlogits_RB, *known, IGNORED=IGNORED, BLOCK_B=BLOCK, num_warps=8)
                if dx_ND is not None:
                    _add_product(sum_RD, dlogits_RB, w_VD[words])
                if dw_VD is not None and rows.start:
                    _add_product(dw_VD[words], dlogits_RB.T, x_ND[rows])
                elif dw_VD is not None:
                    torch.mm(dlogits_RB.T, x_ND[rows], out=dw_VD[words])
            if dx_ND is not None:
                dx_ND[rows] = sum_RD
        return dx_ND, dw_VD, None, None


class _ChunkLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_ND, w_VD, label_N, chunk_rows):
        N, V = x_ND.shape[0], w_VD.shape[0]
        counts_N = label_N != IGNORED
        count = counts_N.sum()
        scale = 1.0 / count.float()
        dx_ND = torch.empty_like(x_ND) if ctx.needs_input_grad[0] else None
        dw_VD = torch.empty_like(w_VD) if ctx.needs_input_grad[1] else None
        lse_N, picked_N = x_ND.new_empty(N, dtype=torch.float32), x_ND.new_zeros(N, dtype=torch.float32)
        room = x_ND.new_empty(min(N, chunk_rows) * V)
        for rows in _pieces(N, chunk_rows, 1):
            R = rows.stop - rows.start
            logits_RV = torch.mm(x_ND[rows], w_VD.T, out=room[: R * V].view(R, V))
            max_R, sum_R = lse_N.new_full((R,), -torch.inf), lse_N.new_zeros(R)
            running = (label_N[rows], max_R, sum_R, picked_N[rows])
            _merge[(R,)](logits_RV, *running, 0, V, BLOCK_B=WHOLE_ROWS_BLOCK, num_warps=16)
            lse_N[rows] = max_R + sum_R.log()
            known = (label_N[rows], lse_N[rows], scale, 0, V)
            _gradient[(R,)](logits_RV, *known, IGNORED=IGNORED, BLOCK_B=WHOLE_ROWS_BLOCK, num_warps=16)
            if dx_ND is not None:
                torch.mm(logits_RV, w_VD, out=dx_ND[rows])
            if dw_VD is not None and rows.start:
                _add_product(dw_VD, logits_RV.T, x_ND[rows])
            elif dw_VD is not None:
                torch.mm(logits_RV.T, x_ND[rows], out=dw_VD)
        ctx.gradients = (dx_ND, dw_VD)
        return torch.where(counts_N, lse_N - picked_N, 0.0).sum() / count

    @staticmethod
    def backward(ctx, dloss):
        dx_ND, dw_VD = ctx.gradients
        return *(None if d is None else d.mul_(dloss.to(d.dtype)) for d in (dx_ND, dw_VD)), None, None


def cut_loss(
    x_ND: torch.Tensor, w_VD: torch.Tensor, label_N: torch.Tensor, budget_bytes: int = BUDGET_BYTES
) -> torch.Tensor:
    """Mean cross-entropy of x W^T against the labels other than -100, cut along the vocabulary; differentiable.

    *budget_bytes* bounds what it allocates beside the gradients. A weight that needs no gradient costs no product.
    """
    return _CutLoss.apply(x_ND.contiguous(), w_VD.contiguous(), label_N.contiguous(), budget_bytes)


def chunk_loss(
    x_ND: torch.Tensor, w_VD: torch.Tensor, label_N: torch.Tensor, chunk_rows: int = CHUNK_ROWS
) -> torch.Tensor:
    """The same loss with the logits of at most *chunk_rows* rows at a time; it may be differentiated once."""
    return _ChunkLoss.apply(x_ND.contiguous(), w_VD.contiguous(), label_N.contiguous(), chunk_rows)
