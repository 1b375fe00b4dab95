"""Writes the .pt files of this folder, in the three forms of SGLang's recorder. Needs torch; the tests do not.

Four layers of which the first is dense, six experts in eight slots: slots 6 and 7 are copies of experts 0 and 5.
"""

from pathlib import Path

import torch

HOME = Path(__file__).parent
SLOTS = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 5]] * 4)


def stat() -> dict[str, object]:
    """Two steps; expert e of layer l is chosen l * (e + step) times."""
    steps = [[[layer * (expert + step) for expert in range(6)] for layer in range(4)] for step in range(2)]
    return {"rank": 0, "logical_count": torch.tensor(steps), "average_utilization_rate_over_window": None}


def per_pass(rank: int) -> dict[str, object]:
    """Two passes; slot s of layer l receives l * (s + 1) rows, and ten times as many in the second pass."""
    rows = torch.tensor([[layer * (slot + 1) for slot in range(8)] for layer in range(4)], dtype=torch.int32)
    records = [
        {"forward_pass_id": 7 + i, "rank": rank, "gatherer_key": "primary", "global_physical_count": rows * 10**i}
        for i in range(2)
    ]
    return {"records": records, "last_physical_to_logical_map": SLOTS}


def per_token() -> dict[str, object]:
    """Five tokens of two experts each, the last token padding; saved from a view into a larger tensor."""
    picks = torch.full((4, 9, 3), -1, dtype=torch.int32)
    picks[1:, :4, :2] = torch.tensor([[0, 7], [6, 1], [2, 5], [3, 4]], dtype=torch.int32)
    record = {
        "forward_pass_id": 3,
        "rank": 1,
        "gatherer_key": "primary",
        "input_ids": [11, 12, 13, 14, 0],
        "positions": [0, 1, 2, 3, 4],
        "extend_seq_lens": [5],
        "forward_mode": 1,
        "topk_ids_of_layer": picks[:, :5, :],
        "misc_objects": [{"layer_id": 1, "num_tokens_per_rdma_rank": None}],
        "global_physical_count": torch.zeros((4, 8), dtype=torch.int32),
    }
    return {"records": [record], "last_physical_to_logical_map": SLOTS}


if __name__ == "__main__":
    torch.save(stat(), HOME / "stat.pt")
    torch.save(per_token(), HOME / "per_token.pt")
    for rank in range(2):
        folder = HOME / "per_pass"
        folder.mkdir(exist_ok=True)
        torch.save(per_pass(rank), folder / f"expert_distribution_recorder_1.5_{rank}.pt")
