"""Prices beside timings of other people and other days, which most curves of NVIDIA H200 were not fitted to.

Timings: an earlier micro-benchmark and profiled steps (torch 2.11.0+cu130), FLA, and
ai-dynamo/aiconfigurator@095f58a5. FLOPs and bytes are counted as the operators count them: a multiply-add is two, each
operand moves once.
"""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest

from simulator.calibration.refit import POWER_LIMITED_S
from simulator.hardware.kernel_time import kernel_time
from simulator.hardware.library import load_accelerator

H200 = load_accelerator("h200-sxm", Path())
SHARED = Path(__file__).parents[1].parent / "shared" / "facts"


def gemm(m, n, k, dtype="bf16"):
    """Alone; of products that are long enough, one after the other, to run into the power limit, as within a step."""
    size = 1 if dtype == "fp8" else 2
    traffic = size * (m * k + k * n) + 2 * m * n
    seconds = kernel_time(H200, "gemm", 2 * m * n * k, traffic, (m, n, k), dtype, alone=True).seconds
    if seconds < POWER_LIMITED_S:
        return float(seconds)
    return float(kernel_time(H200, "gemm", 2 * m * n * k, traffic, (m, n, k), dtype).seconds)


def grouped(rows, k, n):
    rows = np.asarray(rows)
    total = rows.sum()
    traffic = 2 * (total * (k + n) + (rows > 0).sum() * k * n)
    return float(kernel_time(H200, "grouped_gemm", 2 * total * n * k, traffic, (n, k), rows=rows, alone=True).seconds)


def attention(batch, heads, length, qk, v, backward=False):
    pairs = batch * length * (length + 1) / 2
    flops = 2 * heads * (qk + v) * pairs * (2.5 if backward else 1)
    traffic = 2 * batch * length * heads * 2 * (qk + v)
    shape = (heads, qk, length)
    return float(kernel_time(H200, "attention", flops, traffic, shape, backward=backward, alone=True).seconds)


GEMMS = [  # m, n, k, format, seconds
    (1024, 4096, 7168, "bf16", 75.97e-6),
    (4096, 4096, 4096, "bf16", 171.1e-6),
    (8192, 8192, 8192, "bf16", 1360.3e-6),
    (8192, 14336, 4096, "bf16", 1312.6e-6),
    (8192, 18432, 7168, "bf16", 3043.9e-6),
    (4096, 128256, 2048, "bf16", 3122.0e-6),
    (16384, 2048, 7168, "bf16", 677.8e-6),
    (128, 7168, 2048, "bf16", 10.46e-6),
    (4096, 7168, 2048, "bf16", 149.9e-6),
    (4096, 4096, 7168, "bf16", 320.6e-6),
    (8192, 8192, 8192, "bf16", 1640.4e-6),
    (8192, 10240, 8192, "bf16", 1847.4e-6),
    (8192, 14336, 4096, "bf16", 165.54e-3 / 128),
]
GEMMS_OF_A_LIBRARY = [  # the same in fp8, inside an inference library
    (1024, 1024, 1024, "fp8", 7.4e-6),
    (2048, 2048, 2048, "fp8", 17.0e-6),
    (4096, 4096, 4096, "fp8", 110.0e-6),
    (4096, 7168, 2048, "fp8", 112.1e-6),
    (4096, 4096, 7168, "fp8", 230.2e-6),
    (8192, 8192, 8192, "fp8", 834.8e-6),
    (8192, 10240, 8192, "fp8", 979.5e-6),
]
GROUPED = [  # experts, rows of each, k, n, seconds
    (16, 256, 7168, 2048, 169.0e-6),
    (16, 4096, 7168, 2048, 2446.3e-6),
    (128, 512, 2048, 768, 373.1e-6),
    (56, 64, 2048, 1024, 92.4e-6),
]
ATTENTION = [  # batch, heads, length, d_qk, d_v, backward, seconds
    (1, 32, 4096, 128, 128, False, 255.3e-6),
    (1, 32, 16384, 128, 128, False, 3277.6e-6),
    (1, 16, 65536, 128, 128, False, 28.74e-3),
    (2, 64, 4096, 192, 192, False, 1263.0e-6),
    (1, 64, 4096, 128, 128, False, 563.6e-6),
    (1, 32, 8192, 128, 128, False, 938.3e-6),
    (1, 32, 8192, 128, 128, False, 70.07e-3 / 64),
    (1, 128, 4096, 192, 128, False, 1249.0e-6),
    (1, 128, 8192, 192, 128, False, 4816.3e-6),
    (1, 32, 4096, 128, 128, True, 787.5e-6),
    (1, 32, 16384, 128, 128, True, 10.482e-3),
    (1, 16, 65536, 128, 128, True, 81.37e-3),
    (1, 32, 8192, 128, 128, True, 93.31e-3 / 32),
]


def errors(priced, measured):
    return np.abs(np.array(priced) / np.array(measured) - 1)


def test_gemms_within_five_percent_in_the_middle_and_none_beyond_a_fifth():
    found = errors([gemm(*case[:4]) for case in GEMMS], [case[4] for case in GEMMS])
    assert np.median(found) < 0.05
    assert found.max() < 0.18


def test_gemms_of_an_inference_library_take_up_to_four_tenths_longer_than_ours_in_fp8():
    ratios = np.array([gemm(*case[:4]) / case[4] for case in GEMMS_OF_A_LIBRARY])
    assert 0.6 < ratios.min() < ratios.max() < 1.05


def test_grouped_gemms_within_a_quarter():
    found = errors([grouped([rows] * experts, k, n) for experts, rows, k, n, _ in GROUPED], [c[4] for c in GROUPED])
    assert found.max() < 0.23


def test_attention_within_eight_percent_in_the_middle_and_none_beyond_a_fifth():
    found = errors([attention(*case[:6]) for case in ATTENTION], [case[6] for case in ATTENTION])
    assert np.median(found) < 0.08
    assert found.max() < 0.18


CHAIN_FORWARD = [  # kind, FLOPs and bytes a token and head, launches
    ("norm", 0, 1032, 2),
    ("elementwise", 0, 768, 1),
    ("kda", 8_192, 1248, 1),
    ("copy", 0, 128, 1),
    ("kda", 14_336, 1216, 1),
    ("kda", 32_768, 1920, 1),
    ("kda", 65_536, 1544, 1),
    ("kda", 49_152, 2176, 1),
]
CHAIN_BACKWARD = [
    ("elementwise", 0, 768, 1),
    ("kda", 32_768, 2432, 1),
    ("kda", 65_536, 1544, 1),
    ("kda", 32_768, 1152, 1),
    ("kda", 98_304, 2048, 1),
    ("kda", 180_224, 5252, 1),
    ("kda", 40_960, 6160, 1),
    ("elementwise", 0, 1024 + 1280 + 2304, 5),
    ("norm", 0, 2560, 2),
]


def delta_rule_s(steps, tokens, backward=False):
    rows = tokens * 96
    return sum(
        float(kernel_time(H200, kind, flops * rows / n, moved * rows / n, (96, 128), backward=backward).seconds) * n
        for kind, flops, moved, n in steps
    )


@pytest.mark.parametrize(
    ("steps", "tokens", "backward", "measured_s"),
    [
        (CHAIN_FORWARD, 8192, False, 2.935e-3),
        (CHAIN_FORWARD, 32768, False, 11.63e-3),
        (CHAIN_BACKWARD, 8192, True, 12.27e-3),
        (CHAIN_BACKWARD, 32768, True, 48.80e-3),
    ],
)
def test_the_chain_of_the_delta_rule(steps, tokens, backward, measured_s):
    assert delta_rule_s(steps, tokens, backward) == pytest.approx(measured_s, rel=0.06)


@pytest.mark.parametrize(("queries", "context", "measured_s"), [(4096, 0, 80.6e-6), (8192, 131072, 10.485e-3)])
def test_indexer(queries, context, measured_s):
    pairs = queries * (context + queries / 2)
    seconds = float(kernel_time(H200, "indexer", 8192 * pairs, 4 * pairs, (32, 128, queries), "fp8").seconds)
    assert seconds == pytest.approx(measured_s, rel=0.06)


def test_published_sparse_attention_of_8192_queries():
    flops = 8192 * 2 * 2048 * 64 * (576 + 512)
    seconds = float(kernel_time(H200, "flash_mla", flops, 8192 * 64 * 1088 * 2, (64, 576, 8192)).seconds)
    assert seconds == pytest.approx(3.98e-3, rel=0.05)


@pytest.mark.parametrize(
    ("kind", "traffic", "measured_s", "backward"),
    [
        ("copy", 2 * 2**31, 1.0145e-3, False),
        ("loss", 2 * 4 * 8192 * 128256, 3.964e-3, False),
        ("softmax", 2 * 4 * 8192 * 151936, 4.77e-3, False),
        ("softmax", 3 * 4 * 8192 * 151936, 4.94e-3, True),
        ("cat", 4 * 8192 * 18 * 128, 77.8e-6, False),
        ("scatter_put", 6 * 65536 * 2048, 318e-6, True),
        ("masked_fill", 4 * 65536 * 2048, 363e-6, False),
        ("split_copy", 4 * 218112000, 230e-6, False),
        ("list_copy", 15 * 4 * 20971520, 15 * 29.2e-6, False),
        ("situ", 131072 * 6 * 3072, 1.12e-3, False),
        ("situ", 131072 * 10 * 3072, 1.34e-3, True),
        ("chunk_cat", 6 * 218112000, 682e-6, True),
        ("conv", 2 * 2 * 8192 * 3 * 96 * 128, 466.4e-6, False),
    ],
)
def test_kernels_bound_by_memory(kind, traffic, measured_s, backward):
    seconds = float(kernel_time(H200, kind, 0, traffic, backward=backward).seconds)
    assert seconds == pytest.approx(measured_s, rel=0.09)


@pytest.mark.parametrize(
    ("parameters", "bytes_each", "dtype", "measured_s"),
    [
        (5.607e9, 14, "bf16", 29.06e-3),
        (4.616e9, 14, "bf16", 24.07e-3),
        (1.2358e9, 14, "bf16", 6.441e-3),
        (4.015e9, 28, "fp32", 32.80e-3),
    ],
)
def test_fused_adamw_inside_a_step(parameters, bytes_each, dtype, measured_s):
    flops = 12 * parameters
    seconds = float(kernel_time(H200, "optimizer", flops, bytes_each * parameters, dtype=dtype).seconds)
    assert seconds == pytest.approx(measured_s, rel=0.02)


def test_cut_cross_entropy():
    for hidden, vocabulary, measured_s in ((4096, 128256, 130.2e-3), (7168, 163840, 293.5e-3)):
        flops = 8 * 8192 * hidden * vocabulary
        assert float(kernel_time(H200, "loss", flops, 1e9).seconds) == pytest.approx(measured_s, rel=0.03)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the recorded runs are not here")
def test_the_points_above_are_those_of_the_recorded_run():
    with (SHARED / "ground_truth" / "h200_runs.jsonl").open() as file:
        runs = {run["id"]: run for run in map(json.loads, file)}
    seconds = runs["micro-h200"]["seconds"]
    for m, n, k, dtype, measured_s in GEMMS:
        recorded = seconds.get(f"gemm_{m}x{k}x{n}") if dtype == "bf16" else None
        if recorded and (m, n) != (8192, 8192):
            assert measured_s == pytest.approx(recorded, rel=0.02)
    for experts, rows, k, n, measured_s in GROUPED:
        assert measured_s == pytest.approx(seconds[f"grouped_E{experts}_M{rows}_K{k}_N{n}"], rel=1e-3)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the published timings are not here")
@pytest.mark.parametrize(
    ("part", "gpu", "formats", "dtype", "mean_error"),
    [
        ("h200-sxm", "H200", {"fp8"}, "fp8", 0.22),  # at the power limit, or within an inference library
        ("h100-sxm", "H100", {"bfloat16"}, "bf16", 0.02),
        ("h100-sxm", "H100", {"fp8"}, "fp8", 0.10),
        ("h800-sxm", "H800", {"fp8 (1x128/128x128)"}, "fp8/blockwise", 0.07),
        ("a100-80g-sxm", "A100-80GB", {"fp16"}, "bf16", 0.05),
        ("b200-sxm", "B200", {"bfloat16"}, "bf16", 0.10),
        ("b200-sxm", "B200", {"fp8_block"}, "fp8/blockwise", 0.07),
    ],
)
def test_published_gemms_of_other_parts(part, gpu, formats, dtype, mean_error):
    accelerator = load_accelerator(part, Path())
    with (SHARED / "ground_truth" / "kernels_and_collectives.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["gpu"] == gpu and row["dtype"] in formats]
    found = []
    for row in rows:
        sizes = {name.lower(): int(value) for name, value in re.findall(r"\b([mnkMNK])=(\d+)", row["shape"])}
        if row["op"] not in {"gemm", "gemm_fp8_blockwise"} or len(sizes) < 3:
            continue
        m, n, k = (sizes[name] for name in "mnk")
        flops, traffic = 2 * m * n * k, (1 if dtype.startswith("fp8") else 2) * (m * k + k * n) + 2 * m * n
        value = float(row["measured"])
        measured_s = value * 1e-3 if row["unit"] == "ms" else flops / (value * 1e12)
        priced_s = float(kernel_time(accelerator, "gemm", flops, traffic, (m, n, k), dtype, alone=True).seconds)
        found.append(abs(np.log(priced_s / measured_s)))
    assert len(found) >= 5
    assert np.mean(found) < mean_error
