"""The picture of sizes of cluster: which is chosen, which meet the goals, which miss them."""

from simulator.report.sizing_chart import sizing_chart

PARALLEL = {"dp_replicate": 1, "dp_shard": 8, "tp": 1, "cp": 1, "pp": 1, "ep": 1, "etp": 1}
SPLIT = {
    "parallel": PARALLEL,
    "zero": 3,
    "recompute": "none",
    "micro_batch_sequences": 1,
    "pipeline_schedule": "1f1b",
    "virtual_pipeline": 1,
    "stage_layers": None,
    "overlap_exchanges": False,
    "exchange": "all_to_all",
}


def sized(cards: int, days: float, usd: float, verdict: str) -> dict[str, object]:
    wall = {"p10": 0.9 * days * 86_400, "p50": days * 86_400, "p90": 1.1 * days * 86_400}
    return {
        "accelerators": cards,
        "paid_accelerators": cards + 8,
        "wall_s": wall,
        "usd": {"p50": usd},
        "goodput": 0.999,
        "verdict": verdict,
        "split": SPLIT,
    }


def test_the_chosen_size_stands_out_among_those_that_meet_the_goals():
    sizes = [sized(8, 4, 900, "misses deadline"), sized(16, 2, 800, "meets"), sized(32, 1, 700, "meets")]
    figure = sizing_chart({"scenario": "x", "tokens": 1e9, "within_s": 3 * 86_400, "sizes": sizes, "winner": sizes[2]})
    (axes,) = figure.axes
    assert len({bar.get_facecolor() for bar in axes.patches}) == 3
    told = [text.get_text() for text in figure.legends[0].get_texts()]
    assert told == ["cheapest that meets the goals", "meets the goals", "misses them"]
    assert [label.get_text() for label in axes.get_xticklabels()] == [f"{n} cards and 8 spare" for n in (8, 16, 32)]


def test_a_colour_that_no_size_has_is_not_told():
    sizes = [sized(8, 4, 900, "misses deadline")]
    figure = sizing_chart({"scenario": "x", "tokens": 1e9, "within_s": 86_400, "sizes": sizes, "winner": None})
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["misses them"]
