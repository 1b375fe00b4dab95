import io

import pytest
from report_sample import step, summary
from rich.console import Console

from simulator.model.cache import Cache
from simulator.model.census import Census, Row
from simulator.report.headline import headline
from simulator.report.plan_table import sweep_table
from simulator.report.tables import fit_table, model_table, summary_table


def shown(renderable, width=80):
    console = Console(file=io.StringIO(), width=width)
    console.print(renderable)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def result(**changes):
    return {**summary(step(layers=2)), **changes}


@pytest.mark.parametrize("width", [80, 120])
def test_the_summary_fits_the_terminal_and_answers_first(width):
    lines = shown(summary_table(result()), width)
    assert max(map(len, lines)) <= width
    assert lines[0] == "kimi-k3.1-lora-128-h200  fits"
    assert lines[1] == "Step 27.2 ms: 63 % exposed expert all-to-all"
    assert "…" not in "".join(lines)


def test_the_summary_names_rates_cost_skew_and_provenance():
    text = "\n".join(shown(summary_table(result(tokens_per_s=40_179.0, tokens_per_s_per_accelerator=313.9))))
    assert "step time   27.2 ms (p10 25.3 ms, p90 29.4 ms)" in text
    assert "throughput  40,200 tokens/s, 314 per accelerator" in text
    assert "MFU         14.7 %" in text
    assert "cost        4.61 USD per step, 4.4 USD per 1 M tokens" in text
    assert "routing     busiest rank 1.72 x mean, busiest expert 6.4 x mean" in text
    assert "based on    60.0 % measured, 11.4 % scaled, 20.0 % datasheet, 8.6 % assumed" in text


def test_the_summary_tells_how_unlike_images_are():
    unlike = {"per_rank_mean": 3.9375, "per_rank_max": 16, "rank_max_over_mean": 16 / 3.9375}
    text = "\n".join(shown(summary_table(result(images=unlike))))
    assert "images      3.94 a rank, 16 on the fullest: 4.06 x mean" in text
    assert "images" not in "\n".join(shown(summary_table(result())))


def test_time_is_broken_down_largest_first_without_empty_parts():
    lines = shown(summary_table(result(compute={"gemm": 0.005, "kda": 1e-6})))
    start = next(i for i, line in enumerate(lines) if line.startswith("where the step goes"))
    words = [" ".join(line.split()[:-1]) if "█" in line else line for line in lines[start + 2 : start + 8]]
    assert words == [
        "exposed expert all-to-all 17.1 ms 63.0 %",
        "compute 6.53 ms 24.0 %",
        "gemm 5 ms 18.4 %",
        "imbalance 1.91 ms 7.0 %",
        "exposed FSDP 1.09 ms 4.0 %",
        next(w for w in words if w.startswith("launch-bound")),
    ]


def test_memory_names_the_parts_the_peak_and_the_room():
    text = [" ".join(line.split()) for line in shown(summary_table(result()))]
    assert any(line.startswith("saved activations 62.58 GB 44.4 %") for line in text)
    assert any(line.startswith("peak of 141 GB 108.7 GB 77.1 %") for line in text)
    assert "free 32.32 GB 22.9 %" in text


def test_what_is_unknown_is_left_out():
    text = "\n".join(shown(summary_table(result(cost={"usd_per_step": None, "usd_per_1m_tokens": None}))))
    assert "USD" not in text


def test_a_misfit_says_by_how_much_and_what_helps():
    memory = {"hbm": {"peak_bytes": 100e9, "capacity_bytes": 80e9, "breakdown": {"parameters": 100e9}}}
    advice = [
        {"change": "training.recompute=full", "peak_bytes": 61.2e9, "step_time_s": 52.1},
        {"change": "routing=[odd]", "peak_bytes": 70e9, "step_time_s": None},
    ]
    lines = shown(fit_table({"fits": False, "verdict": "does not fit", "memory": memory, "suggestions": advice}))
    text = [" ".join(line.split()) for line in lines]
    assert text[0] == "does not fit"
    assert "too much 20 GB 25.0 %" in text
    assert "training.recompute=full 61.2 GB 52.1 s" in text
    assert "routing=[odd] 70 GB -" in text


def test_a_misfit_that_nothing_mends_says_so():
    memory = {"hbm": {"peak_bytes": 100e9, "capacity_bytes": 80e9, "breakdown": {}}}
    lines = shown(fit_table({"fits": False, "verdict": "does not fit", "memory": memory, "suggestions": []}))
    assert lines[-1] == "No single change makes it fit."


def test_a_model_is_told_by_block():
    rows = (Row("embedding", 100_000, 0), Row("routed experts", 900_000, 3), Row("mtp", 50_000, 1, counted=False))
    cache = Cache(kv_bytes_per_token=1024.0)
    census = Census(total_parameters=1_000_000, active_parameters=250_000, bytes_bf16=2_000_000, rows=rows, cache=cache)
    text = [" ".join(line.split()) for line in shown(model_table(census))]
    assert "embedding 100 k 10.0 %" in text
    assert "routed experts 300 k 3 900 k 90.0 %" in text
    assert "mtp 50 k 1 50 k not counted" in text
    assert "total 1 M 2 MB in bf16" in text
    assert "used by one token 250 k 25.0 %" in text
    assert "keys and values 1.024 kB per token" in text


def test_the_headline_names_the_loss_beside_a_computing_step():
    told = {"step_time_s": {"p50": 3.1}, "time": {"compute_s": 2.2, "exposed_fsdp_s": 0.4, "exposed_tp_s": 0.0}}
    assert headline(told) == "Step 3.1 s: 71 % compute, 13 % exposed FSDP"


def test_a_long_sweep_shows_its_fastest_cases_and_says_where_the_others_are():
    made = {
        "tokens_per_s": 1e3,
        "peak_bytes": 2e9,
        "usd_per_1m_tokens": None,
        "verdict": "fits",
        "error": None,
        "pareto": False,
    }
    cases = [{"settings": {"a": str(number)}, "step_time_s": 60.0 - number} | made for number in range(52)]
    cases.append({"settings": {"a": "x"}, "step_time_s": None, "verdict": "failed", "error": "no divisor"})
    counted = {"cases": 53, "run": 53, "known": 0, "failed": 1}
    lines = shown(sweep_table({"over": {"a": []}, "cases": cases, "counted": counted, "file": "out/cases.parquet"}))
    named = [line.split()[0] for line in lines if line.endswith("fits")]
    assert named == [str(number) for number in range(51, 1, -1)]
    assert "3 more in out/cases.parquet" in lines[-2]
    assert lines[-1] == "1 failed: no divisor"
