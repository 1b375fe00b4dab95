"""The lightning indexer by small operators, some queries at a time."""

from __future__ import annotations

import torch


def scores(q_THD: torch.Tensor, k_SD: torch.Tensor, weight_TH: torch.Tensor, first: int) -> torch.Tensor:
    """[T, S] scores in fp32 of queries *first* to *first* + T of as many keys; -inf for keys after the query."""
    product = torch.einsum("thd,sd->ths", q_THD, k_SD).relu()
    score = torch.einsum("ths,th->ts", product.float(), weight_TH)
    s_S = torch.arange(len(k_SD), device=score.device)
    t_T = first + torch.arange(len(score), device=score.device)
    return score.masked_fill(s_S > t_T[:, None], -torch.inf)


def choose_keys(
    q_THD: torch.Tensor, k_SD: torch.Tensor, weight_TH: torch.Tensor, top: int, rows: int = 1024
) -> torch.Tensor:
    """[T, top] keys of the best scores, best first, -1 where a query sees fewer; queries are the last of the keys."""
    past, chosen = len(k_SD) - len(q_THD), []
    for at in range(0, len(q_THD), rows):
        score = scores(q_THD[at : at + rows], k_SD, weight_TH[at : at + rows], past + at)
        best = score.topk(min(top, len(k_SD)), dim=1)
        index = best.indices.masked_fill(best.values == -torch.inf, -1)
        chosen.append(torch.nn.functional.pad(index, (0, top - index.shape[1]), value=-1))
    return torch.cat(chosen)
