"""Attention of one new token to a cache in pages, sequence by sequence."""

from __future__ import annotations

import torch


def attend(
    q_BHD: torch.Tensor, key_PNGD: torch.Tensor, value_PNGV: torch.Tensor, table_BP: torch.Tensor,
    length_B: torch.Tensor, scale: float,
) -> torch.Tensor:  # fmt: skip
    """[B, H, V] results; query heads share the G key heads in order."""
    found = []
    for q_HD, table_P, length in zip(q_BHD, table_BP, length_B.tolist(), strict=True):
        key_LGD, value_LGV = (cache[table_P.long()].flatten(0, 1)[:length] for cache in (key_PNGD, value_PNGV))
        share = len(q_HD) // key_LGD.shape[1]
        key_LHD, value_LHV = (x.repeat_interleave(share, dim=1) for x in (key_LGD, value_LGV))
        weight_HL = torch.softmax(torch.einsum("hd,lhd->hl", q_HD, key_LHD) * scale, dim=-1)
        found.append(torch.einsum("hl,lhv->hv", weight_HL, value_LHV))
    return torch.stack(found)
