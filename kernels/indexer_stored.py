"""Lightning indexer in two kernels: the scores of all keys to memory, then the best of each query by `kernels.topk`.

`kernels.indexer` does both in one and stores no score. This is the way of stacks that keep them, some queries at a
time.

Legend, as in `kernels.indexer`: T queries, S keys, H heads, D width, Q queries of one program, B keys of one step.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.indexer import STAGES, WARPS, keys_of_step, rows_of_queries, scores, tiling
from kernels.topk import best

SCORES_BYTES = 2**30


@triton.jit
def _store_scores(q_ptr, k_desc, weight_ptr, scale_ptr, score_ptr, T, S, past, H: tl.constexpr, Q: tl.constexpr,
                  D: tl.constexpr, B: tl.constexpr, SCALED: tl.constexpr):  # fmt: skip
    """Scores of Q queries and the keys that the last of them sees; those behind are left as they were."""
    e_E, key_E = tl.arange(0, B * Q), keys_of_step(B, Q)
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * Q
    q_RD, weight_R = rows_of_queries(q_ptr, weight_ptr, first, T, H, Q, D)
    row_E = score_ptr + (first + e_E % Q).to(tl.int64) * S
    for at in range(0, tl.minimum(S, past + first + Q), B):
        score_E = scores(q_RD, k_desc.load([at, 0]), weight_R, H, Q)
        here_E = (at + key_E < S) & (first + e_E % Q < T)
        if SCALED:
            score_E *= tl.load(scale_ptr + at + key_E, mask=here_E, other=0.0)
        tl.store(row_E + at + key_E, score_E, mask=here_E)


def stored_scores(
    q_THD: torch.Tensor,
    k_SD: torch.Tensor,
    weight_TH: torch.Tensor,
    past: int,
    sides: tuple[int, int],
    scale_S: torch.Tensor | None = None,
) -> torch.Tensor:
    """[T, S] fp32: the score of each query and of its first past + t + 1 keys at least; others hold anything."""
    (T, H, D), S, (Q, B) = q_THD.shape, len(k_SD), sides
    score_TS = torch.empty(T, S, dtype=torch.float32, device=q_THD.device)
    k_desc = TensorDescriptor.from_tensor(k_SD, [B, D])
    known = (q_THD.contiguous(), k_desc, weight_TH, weight_TH if scale_S is None else scale_S, score_TS, T, S, past)
    flags = {"H": H, "Q": Q, "D": D, "B": B, "SCALED": scale_S is not None}
    launch = {"num_warps": WARPS.value, "num_stages": STAGES[q_THD.element_size()]}
    _store_scores[(triton.cdiv(T, Q),)](*known, **flags, **launch)
    return score_TS


def choose_keys(
    q_THD: torch.Tensor, k_SD: torch.Tensor, weight_TH: torch.Tensor, top: int, scale_S: torch.Tensor | None = None
) -> torch.Tensor:
    """[T, top] int32, as of `kernels.indexer.choose_keys`; `SCORES_BYTES` of scores at a time, a query's at least."""
    sides, rows = tiling(q_THD, k_SD, top), max(1, SCORES_BYTES // (4 * len(k_SD)))
    chosen, past = [], len(k_SD) - len(q_THD)
    for at in range(0, len(q_THD), rows):
        some = slice(at, at + rows)
        score_TS = stored_scores(q_THD[some], k_SD, weight_TH[some], past + at, sides, scale_S)
        chosen.append(best(score_TS, top, past + at))
    return torch.cat(chosen)
