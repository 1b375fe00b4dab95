"""Errors of every source of measured cases, as they are: whoever moves one states it here and in CHANGELOG.md.

docs/accuracy.md says what the cases are and which mechanism is missing where an error is large.
"""

from pathlib import Path
from statistics import median

import pytest

from simulator.forecast.validation import measured_cases, validate

CASES = Path(__file__).parent / "validation"
MARGIN = 0.005
STEP, THROUGHPUT = "step_time_s", "tokens_per_s_per_accelerator"
ALLOCATED, RESERVED = "peak_allocated_bytes", "peak_reserved_bytes"
FIRST = "first_step_peak_allocated_bytes"
BETWEEN_STEPS = "held_allocated_bytes"
HELD = {
    ("h200", STEP): (18, 0.017, 0.073),
    ("h200", ALLOCATED): (18, 0.000, 0.015),
    ("h200", RESERVED): (18, 0.004, 0.077),
    ("h200", FIRST): (13, 0.000, 0.020),
    ("h200-held-out", STEP): (8, 0.016, 0.037),
    ("h200-held-out", ALLOCATED): (8, 0.000, 0.003),
    ("h200-held-out", RESERVED): (8, 0.005, 0.019),
    ("h200-held-out", FIRST): (8, 0.001, 0.004),
    ("h200-optimizers", STEP): (7, 0.030, 0.045),
    ("h200-optimizers", ALLOCATED): (7, 0.000, 0.000),
    ("h200-optimizers", RESERVED): (7, 0.004, 0.078),
    ("h200-optimizers", FIRST): (7, 0.000, 0.019),
    ("h200-data-parallel", STEP): (9, 0.023, 0.062),
    ("h200-data-parallel", ALLOCATED): (7, 0.000, 0.021),
    ("h200-data-parallel", RESERVED): (7, 0.003, 0.040),
    ("h200-data-parallel", FIRST): (7, 0.000, 0.000),
    ("h200-swap", STEP): (11, 0.028, 0.040),
    ("h200-swap", ALLOCATED): (11, 0.002, 0.033),
    ("h200-swap", RESERVED): (11, 0.013, 0.087),
    ("h200-swap", FIRST): (11, 0.000, 0.044),
    ("h200-parallel", STEP): (12, 0.041, 0.216),
    ("h200-parallel", ALLOCATED): (12, 0.001, 0.021),
    ("h200-parallel", RESERVED): (12, 0.009, 0.025),
    ("h200-parallel", FIRST): (12, 0.001, 0.021),
    ("h200-parallel-held-out", STEP): (8, 0.028, 0.163),
    ("h200-parallel-held-out", ALLOCATED): (8, 0.002, 0.034),
    ("h200-parallel-held-out", RESERVED): (8, 0.002, 0.034),
    ("h200-parallel-held-out", FIRST): (8, 0.000, 0.034),
    ("h200-host", STEP): (6, 0.156, 0.306),
    ("h200-host", ALLOCATED): (6, 0.000, 0.043),
    ("h200-host", RESERVED): (6, 0.014, 0.082),
    ("h200-host", FIRST): (6, 0.000, 0.043),
    ("offload", STEP): (6, 0.083, 0.320),
    ("offload", ALLOCATED): (1, 0.000, 0.000),
    ("offload", BETWEEN_STEPS): (5, 0.003, 0.004),
    ("offload", RESERVED): (7, 0.044, 0.169),
    ("offload", THROUGHPUT): (7, 0.030, 0.221),
    ("llm-foundry", THROUGHPUT): (10, 0.041, 0.264),
    ("llm-foundry-multi-node", THROUGHPUT): (9, 0.032, 0.081),
    ("megatron", STEP): (9, 0.365, 0.488),
    ("megatron-multi-node", THROUGHPUT): (3, 0.111, 0.227),
    ("torchtitan-multi-node", THROUGHPUT): (15, 0.056, 0.187),
    ("torchtitan-multi-node", RESERVED): (3, 0.015, 0.087),
    ("megatron", ALLOCATED): (6, 0.004, 0.019),
    ("megatron", THROUGHPUT): (8, 0.173, 0.197),
    ("nemo", THROUGHPUT): (3, 0.081, 0.086),
    ("simumax", STEP): (25, 0.023, 0.061),
    ("simumax", ALLOCATED): (25, 0.001, 0.007),
    ("simumax", RESERVED): (22, 0.046, 0.060),
    ("stas00", THROUGHPUT): (1, 0.083, 0.083),
    ("stas00", RESERVED): (1, 0.093, 0.093),
    ("torchao", THROUGHPUT): (6, 0.489, 1.191),
    ("torchao", RESERVED): (6, 0.079, 0.145),
    ("torchtitan", THROUGHPUT): (5, 0.058, 0.208),
    ("torchtitan", RESERVED): (5, 0.033, 0.073),
    ("torchtune", THROUGHPUT): (2, 0.018, 0.018),
    ("torchtune", ALLOCATED): (2, 0.030, 0.038),
    ("serving-aic", "ttft_s"): (40, 0.258, 0.939),
    ("serving-aic", "ttft_p50_s"): (10, 0.235, 0.691),
    ("serving-aic", "tpot_s"): (40, 0.147, 0.722),
    ("serving-inferencex", "ttft_s"): (23, 0.206, 0.546),
    ("serving-inferencex", "ttft_p50_s"): (23, 0.182, 0.772),
    ("serving-inferencex", "tpot_s"): (23, 0.091, 0.204),
    ("serving-trtllm", "output_tokens_per_s_per_accelerator"): (8, 0.192, 0.838),
    ("serving-tiers", "output_tokens_per_s_per_accelerator"): (2, 0.232, 0.370),
    ("serving-tiers", "prompt_tokens_per_s_per_accelerator"): (2, 1.691, 1.938),
    ("serving-tiers", "tpot_s"): (1, 0.529, 0.529),
    ("serving-wide", "output_tokens_per_s_per_accelerator"): (1, 0.267, 0.267),
    ("serving-wide", "prompt_tokens_per_s_per_accelerator"): (3, 0.267, 0.289),
    ("zenflow", STEP): (5, 0.189, 0.314),
    ("vtrain", STEP): (36, 0.099, 0.353),
}
"""(cases, median, worst) of the absolute errors of one figure of one source."""


def source(path: Path) -> str:
    return path.parent.name if path.parent != CASES else "h200"


@pytest.fixture(scope="module")
def errors() -> dict[tuple[str, str], list[float]]:
    paths = {path.stem: source(path) for path in measured_cases([CASES])}
    found: dict[tuple[str, str], list[float]] = {}
    for one in validate(measured_cases([CASES])):
        found.setdefault((paths[one.case], one.metric), []).append(abs(one.error))
    return found


def test_every_source_and_figure_is_held(errors):
    assert set(errors) == set(HELD)


@pytest.mark.parametrize("key", HELD, ids="-".join)
def test_errors_stay_where_they_are(errors, key):
    cases, middle, worst = HELD[key]
    assert len(errors[key]) == cases
    assert median(errors[key]) == pytest.approx(middle, abs=MARGIN)
    assert max(errors[key]) == pytest.approx(worst, abs=MARGIN)


def test_names_of_cases_are_unique():
    stems = [path.stem for path in measured_cases([CASES])]
    assert len(set(stems)) == len(stems)
