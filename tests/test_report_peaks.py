from test_report_tables import shown

from simulator.report.peaks_table import peaks_table

PEAK = {
    "rank": 8,
    "ranks": 2,
    "stage": 1,
    "peak_bytes": 2e9,
    "first_step_peak_bytes": 1.5e9,
    "phase": "backward",
    "layer": 3,
    "micro_batch": 0,
    "task": "up",
    "owner": "saved activations",
}


def test_the_three_highest_and_the_lowest_are_shown_with_their_moment() -> None:
    peaks = [PEAK | {"rank": rank, "peak_bytes": (9 - rank) * 1e9} for rank in range(8)]
    lines = [" ".join(line.split()) for line in shown(peaks_table(peaks))]
    assert [line.split()[0] for line in lines if line[:1].isdigit()] == ["0", "1", "2", "7"]
    assert lines[2].startswith("0 (2 alike) 9 GB 1.5 GB backward, layer 3,")


def test_a_peak_of_resident_memory_has_no_layer() -> None:
    alone = PEAK | {
        "ranks": 1,
        "phase": "resident",
        "layer": None,
        "micro_batch": None,
        "task": "",
        "owner": "optimizer",
    }
    assert [" ".join(line.split()) for line in shown(peaks_table([alone]))][2] == "8 2 GB 1.5 GB resident optimizer"
