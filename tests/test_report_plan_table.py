from simulator.report.plan_table import split_label


def test_shares_of_stages_are_told_in_runs():
    degrees = {"dp_replicate": 1, "dp_shard": 64, "tp": 1, "cp": 1, "pp": 16, "ep": 64, "etp": 1}
    told = {
        "parallel": degrees,
        "zero": 1,
        "recompute": "none",
        "micro_batch_sequences": 1,
        "virtual_pipeline": 1,
        "stage_layers": [3, *[4] * 14, 2],
        "pipeline_schedule": "dualpipe",
        "exchange": "hierarchical",
        "overlap_exchanges": True,
    }
    assert split_label(told) == (
        "dp_shard 64 pp 16 ep 64, ZeRO-1, layers 3 + 14 x 4 + 2, dualpipe, hierarchical exchange, exchanges overlapped"
    )
