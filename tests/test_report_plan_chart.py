from simulator.report.plan_chart import plan_chart


def split(step_s, peak_gb, verdict):
    parallel = {"dp_replicate": 1, "dp_shard": 8, "tp": 1, "cp": 1, "pp": 1, "ep": 1, "etp": 1}
    settings = {"zero": 3, "recompute": "none", "micro_batch_sequences": 1, "pipeline_schedule": "1f1b"}
    told = {
        "virtual_pipeline": 1,
        "stage_layers": None,
        "overlap_exchanges": False,
        "exchange": "all_to_all",
        "usd": None,
        "error": None,
    }
    found = {"step_time_s": step_s, "peak_bytes": peak_gb * 1e9, "verdict": verdict, "pareto": False, "loses_by": None}
    return {"parallel": parallel, **settings, **told, "step_time_at_least_s": 1.0, "peak_at_least_bytes": 1e9, **found}


def test_splits_at_one_place_are_numbered_together():
    splits = [split(5.0, 100, "winner"), split(6.0, 90, "fits"), split(6.001, 90.1, "fits"), split(7.0, 90, "fits")]
    counted = {"enumerated": 4, "pruned": 0, "pruned_for_memory": 0, "checked": 0, "simulated": 4, "left": 0}
    answer = {"winner": splits[0], "complete": True, "splits": splits, "counted": counted}
    (axes,) = plan_chart({"scenario": "x", "accelerators": 8, **answer}).axes
    assert [text.get_text() for text in axes.texts] == ["1", "2, 3", "4"]
